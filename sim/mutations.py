"""Breaks the code in many ways, one at a time, and lists which seed of the simulator catches each.

usage: mutations.py SOURCE SCRATCH [--seeds N] [--jobs N] [NAME...] | SOURCE --check

A mutation is (name, file, text, other text, ...): three words for each change; each text occurs once in its file. Only what is
changed is compiled again, with the command that the build used; so `./dev build` comes first. The last line counts; exit status 1
when one was not caught. --check builds nothing: it says which do not fit the code any more.

Where one check stands behind another, so that taking out either alone changes nothing that anybody could see, both are taken
out at once; the comment beside such a group says what stands behind what.
"""

import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys

CORE, MASTER, OWNER, PATH, SEGMENT, STORE, DISK = (f"src/store/{room}/" for room in ("core", "master", "owner", "path", "segment", "client", "disk"))

# Texts that several changes need.
READ_FIRST = "if (generation_read(slot) != generation || state_read(slot) != MC_SLOT_LIVE)\n        return false;"
READ_FIRST_STATE = "generation = generation_read(slot);\n    if (state_read(slot) != MC_SLOT_LIVE)\n        return false;"
READ_LAST = "(uint32_t)MC_SLOT_LIVE);\n    return state_read(slot) == MC_SLOT_LIVE && generation_read(slot) == generation;"
READ_AGAIN = "#endif\n    return state_read(slot) == MC_SLOT_LIVE && generation_read(slot) == generation;"
READ_HASH = "seen.length != transfer->object_length ||\n        seen.hash_low != transfer->hash_low || seen.hash_high != transfer->hash_high"
PUTS_NEVER_DIE = (
    CORE + "put.c", "        if (now - put->started_ms < core->config.put_discard_ms)\n            break;", "        (void)now;\n        break;",
    CORE + "put.c", "        mc_put_dies(core, put);\n        if (keep)", "        if (keep)",
)

MUTATIONS = [
    # Places that are granted ahead: what has "blank" in its name is tried with --blanks, for the others pass it by. Some
    # are rare: test_core_blank shows them (B1, a link that ends; B4, what is refused, twice; B2, exists).
    ("a_blank_takes_a_key_that_is_there", CORE + "blank.c", "    if (mc_objects_find(&core->objects, item->key) != NULL || *left_of", "    if (*left_of",
     CORE + "blank.c", "return mc_objects_find(&core->objects, item->key) == NULL && *left_of", "return *left_of"),
    ("a_blank_takes_a_key_that_has_left_since", CORE + "blank.c", "        *left_of(core, key) = core->counter;", "        (void)key;"),
    ("a_blank_of_a_link_that_ended_is_not_cut", CORE + "blank.c", "    if (cuts && node->state == MC_NODE_CLEARING) {", "    if (false && cuts) {"),
    ("what_a_blank_shows_holds_no_key", CORE + "blank.c", "        mc_key_hold_failed(core, node, item->key);", "        (void)core;"),
    ("a_blank_that_was_refused_makes_its_key_final", CORE + "tombstone.c", "    hold_key(core, node, key, 0);", "    hold_key(core, node, key, UINT64_MAX);"),
    ("a_blank_is_named_before_it_is_written", STORE + "put.c", "    if (work->is_ahead)\n        write_bind(work, link, request_id);\n    write_revokes", "    write_revokes",
     STORE + "put.c", "    struct mc_run run = {.deadline_ns = work->deadline_ns};\n    (void)mc_store_move(store, link", "    if (work->is_ahead)\n        write_bind(work, link, request_id);\n    if (work->is_ahead)\n        (void)mc_link_send(link, work->deadline_ns);\n    struct mc_run run = {.deadline_ns = work->deadline_ns};\n    (void)mc_store_move(store, link"),
    ("exists_is_said_before_the_blank_can_come_no_more", CORE + "put.c", "item->blank_segment != 0 && mc_recover_unsettled(core);", "false;"),
    # What a slot says, and who may write it
    ("commit_takes_any_generation", SEGMENT + "memory.c", "if (commit->generation <= seen_by(memory, commit->slot) || !is_of_our_master", "if (!is_of_our_master"),
    ("commit_skips_the_floor", SEGMENT + "memory.c", "if (commit->generation <= seen_by(memory, commit->slot) || !is_of_our_master(memory, commit->generation))", "if (commit->generation <= generation_read(slot))"),
    ("write_skips_generation_and_floor", SEGMENT + "memory.c", "return generation > seen_by(memory, slot) && is_of_our_master(memory, generation)", "return slot != UINT32_MAX"),
    ("clear_forgets_the_generation", SEGMENT + "memory.c", "    if (generation > generation_read(slot)) /* a second store", "    if (generation > generation_read(slot) && 0) /* a second store"),
    ("clear_does_nothing", SEGMENT + "memory.c", "if (seen_by(memory, number) <= generation)", "if (generation_read(&memory->file.slots[number]) < generation)"),
    ("clear_takes_later_ones_too", SEGMENT + "memory.c", "if (seen_by(memory, number) <= generation)", "if (true)"),
    # A replica's place names a generation that no other has, and the slot says whose key it holds: a reader that looks at neither (before
    # or after the copy) reads whatever took the slot. Either alone is enough, so the key's hash has no mutation of its own.
    ("reader_skips_the_generation_and_the_key", SEGMENT + "memory.c", READ_FIRST, READ_FIRST_STATE,
     SEGMENT + "memory.c", READ_LAST, READ_LAST.replace(" && generation_read(slot) == generation", ""),
     SEGMENT + "memory.c", READ_AGAIN, READ_AGAIN.replace(" && generation_read(slot) == generation", ""),
     PATH + "gather.c", READ_HASH, "seen.length != transfer->object_length"),
    # The state is looked at three times, and what was cleared before the first look is still cleared at the others.
    ("reader_skips_the_state", SEGMENT + "memory.c", READ_FIRST, "if (generation_read(slot) != generation)\n        return false;",
     SEGMENT + "memory.c", READ_LAST, READ_LAST.replace("state_read(slot) == MC_SLOT_LIVE && ", ""),
     SEGMENT + "memory.c", READ_AGAIN, READ_AGAIN.replace("state_read(slot) == MC_SLOT_LIVE && ", "")),
    ("what_was_left_is_passed_over_in_want", SEGMENT + "memory.c", "        if (!may_pass_over && mc_segment", "        if (may_pass_over && mc_segment"),
    ("epoch_raises_no_floor", SEGMENT + "memory.c", "atomic_store(&memory->file.header->floor, epoch << MC_EPOCH_SHIFT);", ""),
    # Tags of places. Here nobody asks for what is not his, so that an owner looks at them, and at each part of a place, is shown by
    # tests/unit/test_tag.c, and that keys are dropped, too; that the master makes tags of the key that was told last, by test_core_tag.c. What
    # honest peers need:
    ("tags_for_readers_name_no_reader", CORE + "describe.c", "{.holder = holder, .slot = place->slot, .generation = place->generation};", "{.slot = place->slot, .generation = place->generation};\n    (void)holder;"),
    ("new_keys_are_not_told", OWNER + "keys.c", "        mc_owner_mount_send(owner);", "        (void)owner;"),
    # Who is told a place just before the keys change may use the key before, and asks again where he may not.
    ("the_key_before_is_dropped_at_once_and_nobody_asks_again", SEGMENT + "serve_lane.c", "return mark == server->key_mark || server->key_number > 1 ?", "return mark == server->key_mark ?",
     STORE + "get.c", "bool is_stale = !asked_stale && any_is(work, MC_ERR_STALE);", "bool is_stale = false;"),
    # Proofs of epochs. That one which is made up is not believed is shown by tests/unit/test_core_evidence.c; that honest nodes have theirs:
    ("a_client_shows_no_proof", STORE + "hello.c", ".epoch_proof = mc_epoch_proof_of(&proof, epoch)", ".epoch_proof = mc_epoch_proof_of(&proof, 0)"),
    ("an_owner_shows_no_proof", OWNER + "master.c", "hello.epoch_proof = mc_epoch_proof_of(&proof, hello.seen_epoch)", "hello.epoch_proof = mc_epoch_proof_of(&proof, 0)"),
    ("a_disk_keeps_no_proof", OWNER + "disk.c", "    disk->mark.proof = disk->owner->seen_proof;", "    disk->mark.proof.epoch = 0;"),
    ("a_proof_is_not_kept_with_the_memory", SEGMENT + "memory.c", "if (is_new && proof->epoch != 0 &&", "if (is_new && proof->epoch == 0 &&"),
    ("commits_repeat_no_tag", PATH + "gather.c", ".tag = transfer->place.tag", ".tag = 0"),
    # Copies
    ("reader_believes_without_checksum", PATH + "gather.c", "return rc < 0 ? rc : crc == slot->crc ? 0 : MC_ERR_CHECKSUM_MISMATCH;", "return rc < 0 ? rc : 0;"),
    ("reader_looks_no_second_time_nor_at_checksum", PATH + "gather.c", "if (rc == 0 || rc == MC_ERR_CHECKSUM_MISMATCH)", "if (rc == MC_ERR_CHECKSUM_MISMATCH)\n        rc = 0;\n    if (0)"),
    ("writer_sums_before_the_end", PATH + "gather.c", ": copy_crc(target + at, source, taken, crc, stream);\n            at += taken;", ": copy_crc(target + at, source, taken - (taken > 100), crc, stream);\n            at += taken;"),
    # Writers that may still be at work
    ("cut_waits_for_nobody", SEGMENT + "memory_writers.c", "    return found;\n}\n\nbool mc_segment_memory_is_written(", "    return found && 0;\n}\n\nbool mc_segment_memory_is_written("),
    # What data threads store is announced, and is waited for by who clears.
    ("data_threads_announce_nothing", SEGMENT + "serve_lane.c", "    if (rc < 0 || lane->server->hand_over == NULL)", "    if (rc <= 0)"),
    ("clears_wait_for_no_data_thread", SEGMENT + "serve.c", "    if (serve->data_count == 0 || cut_is_done(serve, &clear))", "    if (serve != NULL)"),
    # Behind the word of the memory stands the post that closes what is open there.
    ("data_threads_go_on_with_the_memory_before", SEGMENT + "memory.c", "    atomic_store(&memory->given_up, true);", "    (void)memory;",
     SEGMENT + "serve_data.c", "    mc_serve_set_memory(post->serve, post->memory);", ""),
    ("writer_looks_not_at_the_slot", SEGMENT + "writers.c", "        atomic_load(&slots[writing->slot].generation) < generation)", "        true)"),
    ("writer_says_nothing", SEGMENT + "writers.c", "        if (mc_intent_read(&writer->intents[i], &writing) && writing.slot == slot && writing.generation <= generation)", "        if (0 && mc_intent_read(&writer->intents[i], &writing))"),
    # Behind the look at the lock stands the attempt to take it.
    ("living_writers_are_reset", SEGMENT + "memory_writers.c", "if (entry == 0 || memory->attached[entry] || mc_writers_locked(fd, entry, 1))", "if (entry == 0 || memory->attached[entry])",
     SEGMENT + "memory_writers.c", "    if (!mc_writer_lock(fd, entry))\n        return true;", "    (void)mc_writer_lock(fd, entry);"),
    # The master: visibility and space
    ("answer_before_all_is_live", CORE + "put.c", "    if (object->granted == 0 && object->live > 0) {", "    if (object->live > 0 && !object->visible) {"),
    ("live_means_nothing_to_the_put", CORE + "put.c", "item.code == 0 ? GRANT_LIVE : GRANT_CLEAR", "GRANT_CLEAR"),
    # No owner refuses what the master still grants, so this one refuses some for nothing: writers must place those again.
    ("refused_commit_is_live", CORE + "put.c", "item.code == 0 ? GRANT_LIVE : GRANT_CLEAR", "GRANT_LIVE",
     SEGMENT + "memory.c", "    if (commit->generation <= seen_by(memory, commit->slot) || !is_of", "    if (commit->length % 5 == 2 || commit->generation <= seen_by(memory, commit->slot) || !is_of"),
    ("live_of_any_generation", CORE + "put.c", "                     mc_node_generation(core, node) == item.generation;", "                     true;"),
    ("existing_key_is_put_again", CORE + "put.c", "        if (exists && !is_replaced)\n            return again && object->clearing > 0 ? MC_ERR_PUT_IN_PROGRESS : MC_ERR_OBJECT_ALREADY_EXISTS;", "        (void)again, (void)is_replaced;"),
    ("dead_writers_space_is_cleared_only", CORE + "put.c", "        if (how == GRANT_CLEAR)", "        if (how == GRANT_CLEAR || how == GRANT_CUT)"),
    ("space_is_free_before_cleared", CORE + "replica.c", "    if (segment->clear_unsent == MC_NODE_NONE)\n        segment->clear_unsent = slot;\n    mc_node_set_clearing_writer(node, NULL);", "    if (segment->clear_unsent == MC_NODE_NONE)\n        segment->clear_unsent = slot;\n    mc_node_set_clearing_writer(node, NULL);\n    mc_list_remove(segment, &segment->clears, slot);\n    segment->clearing -= node->size;\n    segment->clear_unsent = segment->clears.head;\n    mc_node_free(core, segment, slot);\n    return;"),
    ("remove_waits_for_nobody", CORE + "tombstone.c", "    if (wait != NULL)\n        mc_key_wait(core, object, wait);", "    (void)wait;"),
    # Keys that are held until what was theirs is cleared.
    ("cleared_keys_are_free_at_once", CORE + "tombstone.c", "return object->tombstone != 0 && object->clearing > 0 && object->hard;", "return object == NULL;"),
    ("nothing_holds_a_key", CORE + "replica.c", "    if (object != NULL && !mc_segment_ask_departed(core, segment)) {", "    if (0) {"),
    ("late_removals_wait_for_nobody", CORE + "request.c", "        if (object != NULL && object->clearing > 0)", "        if (0)"),
    ("remove_all_passes_over_held_keys", CORE + "job.c", "    if (object == NULL || object->visible || !matches(core, job, object, &steps))", "    if (object == NULL || object->visible || object->tombstone != 0)"),
    # mc_key_hides has no mutation: since an upsert waits for what it replaces, only what a merge refused is hidden, and no seed has met that
    # at the one moment in which it matters; tests/unit/test_core_held.c does.
    # Upserts
    # That a successor ends with what it is to replace stands before the look whether that is still there.
    ("upsert_replaces_what_it_has_not_met", CORE + "replica.c", "object->visible && object->serial == successor->soft_until &&\n                mc_object_version(core, object) < first_version(core, successor) &&", "object->visible &&",
     CORE + "replica.c", "        mc_put_end_successors(core, object, successor);", "        mc_offload_cancel(core, object);"),
    ("upsert_leaves_the_value_before", CORE + "replica.c", "        mc_object_unlive(core, object, false);\n        core->visible_count--;", "        object->live = 0;\n        core->visible_count--;"),
    ("upsert_drops_the_value_before_at_once", CORE + "put.c", "    bool replaces = object != NULL && object->visible;",
     "    bool replaces = false;\n    if (object != NULL && object->visible) {\n        mc_object_drop(core, object, NULL);\n        object = mc_objects_find(&core->objects, item->key);\n    }"),
    # What an owner that is cut off holds is not replaced in the first place: between the swap and CLEARED it must be cut off to be waited for.
    ("upsert_waits_for_nothing", CORE + "replica.c", "how = object->remains > 0 ? MC_REPLACE_WAITS : MC_REPLACE_DONE;", "how = MC_REPLACE_DONE;",
     CORE + "replica.c", "    bool is_told = object->remains == 0 && can", "    bool is_told = can", CORE + "replica.c", "        if (at.segment->state != MC_SEGMENT_OK && !mc_segment_ask_departed(core, at.segment))\n            return false;", "        continue;"),
    ("other_upserts_go_on", CORE + "replica.c", "        mc_put_end_successors(core, object, successor);", "        mc_offload_cancel(core, object);"),
    ("what_a_failed_grant_left_is_forgotten", CORE + "put.c", "exists && object->clearing == 0 && mc_object", "exists && mc_object"),
    ("reader_of_a_key_that_waits_asks_once", STORE + "get.c", "           one->code != MC_ERR_PUT_IN_PROGRESS;", "           true;"),
    # Young masters
    ("young_masters_remove", CORE + "recover.c", "    return is_being_told(core) || core->veiled || is_young(core) || mc_core_is_departing(core);", "    return is_being_told(core) || mc_core_is_departing(core);"),
    ("quiet_masters_are_evidence", CORE + "recover.c", "    return core->has_changed || core->has_acted || mc_recover_is_of_age(core);", "    return core != NULL;"),
    ("a_mount_is_an_act", OWNER + "master.c", "mc_owner_contact(owner, reply->epoch, false, reply->behind", "mc_owner_contact(owner, reply->epoch, true, reply->behind"),
    ("contents_are_ours_before_they_are_offered", OWNER + "master.c", "    if (reply->inventory == 0 && mc_segment_memory_epoch(owner->memory) != reply->epoch)", "    if (mc_segment_memory_epoch(owner->memory) != reply->epoch)"),
    # The note of departures
    ("departures_are_not_noted", CORE + "machine.c", "    core->depart_let_ms = config->asks_to_depart ? 0 : UINT64_MAX;", "    core->depart_let_ms = UINT64_MAX;"),
    ("what_the_last_master_never_met_is_whole", CORE + "evidence.c", "    return epoch != 0 && epoch >= since && epoch <= config->whole_epoch;", "    return epoch != 0 && since != 0 && epoch <= config->whole_epoch;"),
    # How far a leader went
    ("the_horizon_is_not_looked_at", CORE + "evidence.c", "    if (past->contact_at_ms <= horizon_of(core, past) && past->contact_at_ms != 0)", "    if (false)"),
    ("all_of_who_departed_last_is_whole", CORE + "evidence.c", "horizon_ms != 0 && past->contact_at_ms > horizon_ms;\n}\n\nstatic bool is_witnessed", "true;\n}\n\nstatic bool is_witnessed"),
    # That a later master gave somebody up has no mutation there, since no seed of 6,000 catches it; test_horizon_of_the_predecessor of
    # tests/unit/test_core_evidence.c fails without it.
    # That each departure waits for a horizon of its own has no mutation, since no seed of 3,000 catches it; tests/unit/test_core_held.c does.
    # A removal that comes before the note is BUSY, one that waits already goes on when the segment is let go or swept: each is one way of three.
    ("nothing_waits_for_the_note", CORE + "recover.c", "is_young(core) || mc_core_is_departing(core);", "is_young(core);",
     CORE + "job.c", "mc_core_is_departing(core) ? NULL : next_job(core, &core->jobs);", "next_job(core, &core->jobs);",
     CORE + "segment.c", "    return at_ms <= core->depart_let_ms;", "    return true;"),
    # The note that a master leaves on its machine
    ("the_note_is_not_read", CORE + "evidence.c", "    if (epoch == 0 || epoch >= core->epoch)\n        return;", "    if (epoch <= core->epoch)\n        return;"),
    ("the_note_is_written_once", MASTER + "note.c", "note->is_whole != is_whole || boot_ms + AHEAD_MS / 2 > note->until_ms", "note->is_whole != is_whole"),
    ("who_has_done_nothing_is_noted", MASTER + "server.c", "server->core != NULL && mc_core_acts(server->core);", "server->core != NULL;"),
    ("whoever_is_noted_lived_until_now", MASTER + "server.c", "(int64_t)age_ms < 0 ? 0 : age_ms;", "age_ms - age_ms;"),
    ("contents_in_doubt_are_taken_in_silence", CORE + "recover.c", "    core->statistics.recovery_in_doubt++;\n    if (core->statistics.recovery_in_doubt == 1)", "    if (0)"),
    # That nothing is sent while the note hangs has no mutation, since no seed of 1,000 catches it: tests/unit/test_note.c and
    # tests/system/test_note_hangs.py do.
    # What the cores before this one in the same process did not change has no mutation: no seed comes by it since who has changed nothing
    # has not acted; test_cores_that_changed_nothing of tests/unit/test_core_evidence.c fails without the rule.
    ("who_has_offered_has_acted", CORE + "recover.c", "    return core->has_changed || core->has_acted", "    return core->has_offered || core->has_acted"),
    ("what_is_noted_came_before_later_epochs", CORE + "evidence.c", "    if (core->config.known_is_timed)\n", "    if (0)\n"),
    ("who_came_of_age_is_not_believed", CORE + "evidence.c", "    return epoch < config->aged_epoch || (", "    return (",),
    ("a_refused_write_is_committed", "src/store/segment/serve_lane.c", "item.generation <= lane->refused_generation;", "false;"),
    ("each_process_of_a_node_is_another_witness", CORE + "evidence.c", "    if (!is_owner || name.length == 0)\n", "    if (is_owner || name.length == 0)\n"),
    ("who_was_late_is_not_remembered", CORE + "evidence.c", "epoch > config->aged_epoch && epoch < config->aged_next", "false"),
    ("the_horizon_is_not_noted", MASTER + "server.c", "        config.asks_to_depart = server->note.fd >= 0;\n", ""),
    ("the_horizon_of_a_note_is_not_read", MASTER + "note.c", "    read_horizons(note);\n", ""),
    ("age_is_not_on_the_disk", MASTER + "note.c", "    int why = fdatasync(pen->fd) == 0 ? 0 : errno;", "    int why = 0;"),
    ("nobody_waits_to_be_of_age", MASTER + "server.c", "    config.asks_to_age = role != NULL || server->note.fd >= 0;", "    config.asks_to_age = false;"),
    # That it gave up nobody. What members say of yet another master, which no simulated machine has: test_a_note_of_who_gave_up_nobody of
    # tests/unit/test_core_evidence.c; and of a note that was not kept, the test behind it.
    ("who_gave_up_nobody_is_judged_by_its_time", MASTER + "server.c", "config.known_is_whole = server->noted_is_whole;", "config.known_is_whole = false;"),
    ("giving_up_is_not_noted", MASTER + "server.c", "!mc_core_has_given_up(server->core),", "true,"),
    # Contacts
    ("who_has_given_up_is_a_contact", STORE + "heartbeat.c", "reply.quiet == 0, is_held ? answered_ms : 0, reply.age_ms,", "reply.quiet == 0, answered_ms, reply.age_ms,"),
    ("contact_is_of_the_question", STORE + "heartbeat.c", "is_held ? answered_ms : 0, reply.age_ms,", "is_held ? sent_ms : 0, reply.age_ms,"),
    ("who_is_behind_has_contact", CORE + "member.c", ".code = own ? segment->late > 0 || !contact :", ".code = own ? !contact :"),
    ("who_remembers_asks_for_no_contact", STORE + "get.c", ".contact_age_max_ms = work->link == NULL ? work->contact_age_max_ms : 0};", ".contact_age_max_ms = 0};"),
    # When a master sent what is read
    ("what_is_read_late_is_news", OWNER + "master_time.c", "    if (epoch == 0 ||", "    if (true ||"),
    ("masters_end_before_they_do", OWNER + "master_time.c", "int64_t sent_ms = most_ms + age_ms;", "int64_t sent_ms = most_ms + age_ms - 2500;"),
    ("quarantine_is_never_left", CORE + "replica.c", "        if (node != NULL && node->state == state && mc_node_generation(core, node) == item.generation)", "        if (node != NULL && node->state == state && state == MC_NODE_CLEARING && mc_node_generation(core, node) == item.generation)"),
    ("cleared_is_not_heard", CORE + "replica.c", "        if (node != NULL && node->state == state && mc_node_generation(core, node) == item.generation)", "        if (node != NULL && node->state == state && state != MC_NODE_CLEARING && mc_node_generation(core, node) == item.generation)"),
    ("clearing_forgets_its_sum", CORE + "replica.c", "    segment->clearing -= node->size;\n    segment->late", "    segment->late"),
    # The master: recovery
    ("stale_contents_are_taken", CORE + "recover.c", "                                : mc_evidence_against(core, past);", "                                : NULL;",
     # and again when they are offered
     CORE + "recover.c", "    return segment->is_earlier ? mc_evidence_against(", "    return false ? mc_evidence_against("),
    ("contents_are_judged_once", CORE + "recover.c", "    return segment->is_earlier ? mc_evidence_against(", "    return false ? mc_evidence_against("),
    ("no_contents_are_taken", CORE + "recover.c", "                                : mc_evidence_against(core, past);", "                                : core->recovery_over ? mc_evidence_against(core, past) : \"a mutation\";"),
    # Lost, after a fault that loses others: certainty is each owner's own.
    ("contents_are_stale_too_soon", CORE + "evidence.c", "past->contact_ms + (int64_t)core->config.depart_ms;\n    ", "past->contact_ms + (int64_t)core->config.depart_ms / 8;\n    "),
    ("a_directory_is_not_taken_up", SEGMENT + "name.c", "        verdict = page.header.capacity == capacity || capacity == ANY_CAPACITY ? GOOD : OTHER_SIZE;", "        verdict = OTHER_SIZE;"),
    ("a_takeover_drops_what_was_told", CORE + "recover.c", "node->state != MC_NODE_LIVE || node->seen == segment->round)", "node->state != MC_NODE_LIVE || (node->seen == segment->round && slot % 3 != 1))"),
    ("tombstones_are_ignored", CORE + "recover.c", "    if (object != NULL && !mc_tombstone_lets(core, object, version))", "    if (0)"),
    ("a_failed_put_lets_back_what_a_disk_has", CORE + "recover.c", "bool has_no_object = object == NULL || object->tombstone != 0;", "bool has_no_object = object == NULL;"),
    ("no_tombstone_for_the_unknown", CORE + "tombstone.c", "    if (!mc_recover_remembers(core))\n        return;\n    cell = mc", "    if (true)\n        return;\n    cell = mc"),
    ("an_older_version_wins", CORE + "recover.c", "        if (known > version)\n            return NULL;", "        if (known < version)\n            return NULL;"),
    ("versions_are_mixed", CORE + "recover.c", "        if (known == version)\n            return may_join", "        if (true)\n            return may_join"),
    ("generations_of_the_past_are_ours", CORE + "recover.c", "    node->base = base & 0xff;", "    node->base = 0;"),
    ("refused_entries_lie_free", CORE + "recover.c", "    mc_node_clear(core, segment, slot, NULL);\n    if (counted && key.length > 0)\n        mc_key_hold_entry(core, node, key);\n    await_clear(core, segment, slot);\n    if (!counted)", "    (void)key;\n    (void)counted;\n    segment->used -= node->size;\n    mc_node_free(core, segment, slot);\n    if (0)"),
    ("offered_before_all_is_told", CORE + "recover.c", "    if (!segment->recovering || segment->inventory != MC_INVENTORY_NONE || segment->dropping ||\n        awaits_clears(core, segment) || grace || core->veiled ||", "    if (!segment->recovering || grace || core->veiled ||"),
    ("nothing_waits_for_writers_of_the_past", CORE + "recover.c", "    mc_node_cut(core, segment, item->slot, NULL, writer);", "    segment->used -= node->size;\n    mc_node_free(core, segment, item->slot);"),
    ("a_late_master_is_followed", CORE + "member.c", "    if (hello.seen_epoch > core->epoch) {", "    if (0) {"),
    ("remove_in_the_window_leaves_no_tombstone", CORE + "tombstone.c", "    if (!mc_recover_remembers(core) || lets_all) {\n        forget(core, object);\n    } else if", "    if (true) {\n        forget(core, object);\n    } else if"),
    ("what_goes_after_the_window_is_forgotten", CORE + "tombstone.c", "    if (!mc_recover_remembers(core) || lets_all) {", "    if (!mc_recover_open(core) || lets_all) {"),
    ("tombstones_are_forgotten_after_the_window", CORE + "tombstone.c", "        list_remove(core, object);\n        rest(core, object);", "        list_remove(core, object);\n        forget(core, object);"),
    ("late_disks_are_taken_in_doubt", CORE + "recover.c", "    if (why == NULL && core->recovery_over && doubtful(core, past))", "    if (0)"),
    ("the_unknown_is_forgotten_after_the_window", CORE + "tombstone.c", "    if (!mc_recover_remembers(core))\n        return;\n    cell = mc", "    if (!mc_recover_open(core))\n        return;\n    cell = mc"),
    ("epochs_of_another_boot_are_free", MASTER + "note.c", "    note->taken = record.taken;\n    if (!mc_id_equal(record.boot, mc_host_id()) || record.epoch == 0)\n        return;", "    if (!mc_id_equal(record.boot, mc_host_id()) || record.epoch == 0)\n        return;\n    note->taken = record.taken;"),
    ("masters_told_the_same_take_the_same_epoch", MASTER + "server.c", "leapt = wanted + mc_random_u64() % (room < EPOCH_LEAP ? room : EPOCH_LEAP);", "leapt = wanted + room - room;"),
    # The owner and the client
    ("owner_forgets_early_commits", OWNER + "master.c", "        if (met != 0) {\n            mc_owner_news_drop", "        if (true) {\n            mc_owner_news_drop"),
    # Behind the mount stands the contact with the master before, which is kept until a heartbeat is answered: it is too old only when
    # a master was away for seconds and the next one ends before its first heartbeat (seed 308 of seeds/found was that).
    ("mount_is_no_contact", OWNER + "master.c", "mc_owner_contact(owner, reply->epoch, false, reply->behind != 0 ? 0 : owner->mount_sent_ms, owner->hello_at_ms,\n                     frame_time);", "(void)frame_time;",
     OWNER + "epoch.c", "    mc_segment_memory_set_epoch(owner->memory, epoch);\n    mc_segment_memory_set_contact_ms(owner->memory, contact_ms);",
     "    mc_segment_memory_set_epoch(owner->memory, epoch);"),
    ("owner_keeps_its_epoch", OWNER + "master.c", "    mc_owner_epoch_set(owner, owner->master_epoch);", ""),
    ("stale_owner_keeps_its_memory", OWNER + "master.c", "    int rc = memory_renew(owner);\n    struct mc_id cluster;", "    int rc = 0;\n    struct mc_id cluster;"),
    ("cleared_is_said_before_it_is_done", OWNER + "master.c", "        if (mc_segment_memory_clear(owner->memory, slot.slot, slot.generation) < 0) {", "        if (slot.slot == UINT32_MAX) {"),
    ("a_directory_is_waited_for_beyond_the_deadline", STORE + "life.c", "part_until_ns(deadline_ns, DATA_DIR_WAIT_NS)", "mc_clock_ns() + DATA_DIR_WAIT_NS"),
    ("a_put_whose_answer_was_lost_happens_twice", CORE + "put.c", "int32_t code = item->unsure == 0 ? 0 : unsure_code(core, *object, item);", "int32_t code = 0;\n    (void)unsure_code;"),
    ("a_put_that_failed_is_forgotten_under_the_next_master", STORE + "put.c", "        if (one->code == PENDING && code.code == MC_ERR_STALE && work", "        if (one->transfer_count > 0)\n            one->unsure = 0;\n        if (one->code == PENDING && code.code == MC_ERR_STALE && work"),
    ("memory_of_no_epoch_is_taken_for_empty", CORE + "segment.c", "    if (mounting->past.epoch == 0 && mounting->wire.slot_top > 0)", "    if (false)"),
    # Told what is not so
    ("removed_keys_exist", CORE + "request.c", "objects[i] != NULL &&\n                     (mc_object_stored(core, objects[i]) || mc_object_coming(core, objects[i], &replica, 1) > 0);", "mc_objects_find(&core->objects, keys[i]) != NULL;\n        (void)replica;",
     CORE + "request.c", "static uint32_t exist_group(struct mc_core *core, struct mc_object *const *objects, uint32_t count, uint8_t *results)", "static uint32_t exist_group(struct mc_core *core, struct mc_object *const *objects, uint32_t count, uint8_t *results,\n                            const struct mc_span *keys)",
     CORE + "request.c", "results[i] && objects[i]->visible", "results[i] && objects[i] != NULL && objects[i]->visible", CORE + "request.c", "count - i : PREFETCH_GROUP, &results[i]);", "count - i : PREFETCH_GROUP, &results[i], &keys[i]);"),
    ("nothing_exists_under_half_of_the_names", CORE + "request.c", "        results[i] = objects[i] != NULL &&\n", "        results[i] = objects[i] != NULL && objects[i]->length % 2 == 0 &&\n"),
    ("every_put_hears_exists", CORE + "put.c", "return put->connection == start->connection ? MC_ERR_OBJECT_ALREADY_EXISTS : MC_ERR_PUT_IN_PROGRESS;", "return put != NULL ? MC_ERR_OBJECT_ALREADY_EXISTS : MC_ERR_PUT_IN_PROGRESS;"),
    ("writers_name_no_version", STORE + "put.c", "            work->open[i]->unsure = place.generation - place.replica;", ""),
    ("the_value_itself_is_no_proof", CORE + "put.c", ": put >= version ? MC_ERR_OBJECT_ALREADY_EXISTS", ": put >= version && false ? 0"),
    # Removals
    ("what_is_evicted_is_gone_for_good", CORE + "replica.c", "    uint64_t bound = object->met ? mc_node_version(core, mc_segment_node(segment, slot)) : 0;", "    uint64_t bound = UINT64_MAX;"),
    ("remove_takes_one_replica", CORE + "replica.c", "        last = object->live == 1;", "        last = true;"),
    ("values_come_while_a_removal_waits", CORE + "tombstone.c", "    object->hard = 1; /* a value that came now would begin before the removal is over */", ""),
    # Owners that come and go
    ("clears_are_said_once", CORE + "segment.c", "    segment->clear_unsent = segment->clears.head;", ""),
    ("nobody_is_ever_gone", CORE + "member.c", "        if (now - member->seen_ms >= gone_ms) {", "        if (now - member->seen_ms >= gone_ms && gone_ms == 0) {"),
    ("recovery_joins_what_is_being_put", CORE + "recover.c", "            return NULL; /* it is being put */", "            return object; /* it is being put */"),
    ("the_last_entry_is_not_told", OWNER + "inventory.c", "        if (!is_there(owner, item))", "        if (!is_there(owner, item) || (head.last != 0 && i + 1 == count && i > 0))"),
    ("quiet_masters_are_heard", OWNER + "master.c", "mc_owner_heard(owner, reply.epoch, reply.quiet == 0, frame->time);", "mc_owner_heard(owner, reply.epoch, true, frame->time);"),
    # Remembered places
    ("owners_compare_no_contact", SEGMENT + "serve_lane.c", "        !mc_segment_memory_contact_within(lane->server->memory, request->contact_age_max_ms))", "        false)"),
    ("readers_of_maps_compare_no_contact", PATH + "shm.c", "        !mc_index_contact_within(shm->header, run->contact_age_max_ms, mc_clock_boot_ms())) {", "        false) {"),
    ("memory_of_the_dead_is_read", PATH + "shm.c", "    if (run->contact_age_max_ms != 0 && !mc_socket_is_silent(shm->fd)) {", "    if (0) {"),
    # Clocks, boots, starts
    ("masters_of_one_hundredth_share_an_epoch", MASTER + "election.c", "    (void)nanosleep(&step, NULL); /*", "    (void)step; /*"),
    # Elections
    ("a_leader_looks_once_for_a_turn", MASTER + "connections.c", "        if (connection->server->core != NULL && !mc_server_may_serve(connection->server))\n            return false;", ""),
    ("leaders_serve_beyond_their_time", MASTER + "leadership.c", "            most(leadership->serve_until_ms, sent_ms + leadership->config.ttl_ms - leadership->config.margin_ms);", "            most(leadership->serve_until_ms, sent_ms + 4 * leadership->config.ttl_ms);"),
    ("standbys_claim_at_once", MASTER + "leadership.c", "        return leadership->seen_ms + view->ttl_ms;", "        return leadership->seen_ms + 150;"),
    ("what_is_gone_has_resigned", MASTER + "leadership.c", "    return !view->is_present && view->has_resigned;", "    return !view->is_present;"),
    # The revision of the view, and the claim, change together with every claim.
    ("claims_have_no_guard", MASTER + "election_etcd.c", "    mc_etcd_compare_revision(&place->body, place->view_key, seen->is_present ? seen->revision : 0);", "    compare_text(place, place->epoch_key, seen->claim);",
     MASTER + "election_etcd.c", "    mc_buffer_printf(&place->body, \",\");\n    compare_text(place, place->epoch_key, seen->claim);\n", "    place->body.length = (size_t)((uint8_t *)strchr((char *)place->body.data, '[') - place->body.data) + 1;\n",
     MASTER + "election_etcd.c", "        mc_buffer_printf(&place->body, \",\");\n        compare_text(place, place->word_keys[i]", "        if (i == MC_ELECTION_DEPARTED)\n            continue;\n        mc_buffer_printf(&place->body, \",\");\n        compare_text(place, place->word_keys[i]"),
    # Plain mistakes of each party
    ("ranges_begin_at_zero", STORE + "get.c", "                                                               .offset = one->offset,", "                                                               .offset = 0,"),
    ("sizes_are_one_more", CORE + "request.c", "found.replica_count = (uint8_t)taken;", "found.replica_count = (uint8_t)taken;\n    found.length++;"),
    ("remove_all_leaves_some", CORE + "job.c", "    if (job->regex == NULL)\n        return true;", "    if (job->regex == NULL)\n        return object->length % 3 != 0;"),
    ("patterns_leave_some", CORE + "job.c", "    return rc > 0;\n}", "    return rc > 0 && object->length % 3 != 0;\n}"),
    ("extents_are_one_unit_too_short", CORE + "put.c", "uint64_t units = mc_extent_units(item->length, item->key.length + (start->is_head ? MC_MARK_LENGTH : 0));", "uint64_t units = mc_extent_units(item->length, item->key.length + (start->is_head ? MC_MARK_LENGTH : 0)) - (item->length > 640);"),
    ("contents_end_before_they_do", SEGMENT + "memory.c", "    if (!is_used(memory, number)) { /*", "    if (!is_used(memory, number) && number < 2) { /*"),
    ("commits_of_no_sum", SEGMENT + "memory.c", "        __atomic_store_n(&slot->crc, commit->crc, __ATOMIC_RELEASE);", "        __atomic_store_n(&slot->crc, commit->crc ^ (commit->length == 2001), __ATOMIC_RELEASE);"),
    ("hearts_beat_too_seldom", STORE + "heartbeat.c", "    return clamp_ms(heartbeat->client_ttl_ms / BEATS_PER_TTL, HEARTBEAT_LEAST_MS, most_ms);", "    return clamp_ms(heartbeat->client_ttl_ms * 2, HEARTBEAT_LEAST_MS, 10 * most_ms);"),
    ("a_writer_of_the_past_has_the_floor", SEGMENT + "writers.c", "    if (generation != 0 && atomic_load(&header->floor) <= generation &&", "    if (generation != 0 && "),
    ("offered_before_its_second", CORE + "recover.c", "core->config.predecessor_end_ms == 0 && core->now_ms < core->config.recovery_grace_ms;", "core->config.predecessor_end_ms == 0 && false;"),
    ("masters_before_us_lived_after_our_start", CORE + "evidence.c", "(struct mc_evidence){epoch, alive_ms < 0 ? alive_ms : 0, hello->cluster};", "(struct mc_evidence){epoch, alive_ms + 4000, hello->cluster};"),
    ("nobody_tells_of_masters_before", CORE + "evidence.c", "    if (said.epoch == 0 || core->disks_over)", "    if (said.epoch < UINT64_MAX)"),
    # Another cluster. Behind the master stands the owner, which looks whether the master is of its own.
    ("foreign_contents_are_let_in", CORE + "cluster.c", "    if (is_other && (hello->holds != 0 || hello->seen_epoch > core->epoch)) {", "    if (false) {",
     CORE + "cluster.c", "    return core->cluster_kept ? core->cluster : (struct mc_id){0, 0};", "    return core->cluster_kept ? (struct mc_id){0, 0} : core->config.cluster;"),
    ("names_are_told_before_they_are_written", MASTER + "server.c", "    if (rc > 0 && !(next_knows && naming_is_late(server)))", "    if (rc > 0 && !next_knows && false)"),
    ("disks_are_hidden_by_memory_that_says_nothing", OWNER + "owner.c", "    if (!holds || mc_id_is_zero(*cluster)) /*", "    if (!holds) /*"),
    ("what_holds_nothing_is_said_of_foreign_contents", OWNER + "master.c", "    hello.holds = owner->held;", "    hello.holds = 0;",
     OWNER + "master.c", "    if (holds) { /* since the hello; or the master has become another's meanwhile */", "    if (false) {"),
    ("pieces_of_two_versions_are_one", STORE + "get.c", "    pin->torn |= pin->version != 0 && pin", "    pin->torn |= pin->version == 1 && pin"),
    ("reads_are_one_byte_short", STORE + "get.c", "                                                               .length = one->length,", "                                                               .length = one->length - (one->length == 1001),"),
    ("owners_forget_what_they_were_told_to_clear", OWNER + "master.c", "        if (mc_segment_memory_clear(owner->memory, slot.slot, slot.generation) < 0) {", "        if (slot.slot % 5 != 3 && mc_segment_memory_clear(owner->memory, slot.slot, slot.generation) < 0) {"),
    # A grant that failed is ended by the writer at once, by the writer after its patience, by the end of its link, and by put_discard.
    ("nobody_ends_grants_that_failed", STORE + "put.c", "            if ((!all && transfer->result >= 0) || transfer->is_unsure)", "            if (true)",
     STORE + "put.c", "        link->broken = true; /* a late PUT_DONE", "        rc = rc; /* a late PUT_DONE", *PUTS_NEVER_DIE),
    ("the_dead_keep_their_grants", *PUTS_NEVER_DIE),
    # Pins and groups
    ("hard_pins_are_as_any_other", CORE + "replica.c", "    return object->visible && !object->hard && ", "    return object->visible && "),
    ("soft_pins_go_first", CORE + "evict.c", "    if (slot == MC_NODE_NONE)\n        slot = oldest(core, segment, core->config.policy, ",
     "    if (slot == MC_NODE_NONE)\n        slot = oldest(core, segment, &soft_policy, segment->soft.count, passing);\n    if (slot == MC_NODE_NONE)\n        slot = oldest(core, segment, core->config.policy, "),
    ("groups_leave_in_part", CORE + "evict.c", "    units += evict_members(core, group, segment, count);", "    group->going_left = 0;"),
    ("a_read_protects_one_member", CORE + "evict.c", "        return group->readers > 0 && core->now_ms < group->lease_until_ms;", "        return object->readers > 0 && core->now_ms < group->lease_until_ms;"),
    ("a_head_without_pieces_is_there", CORE + "stripe.c", "    if (!is_complete(group))\n        return false;\n    for", "    return true;\n    for"),
    ("pieces_stay_without_their_head", CORE + "group.c", "        group->is_over = group->is_shown; /* else it was never there, and may be put again */", ""),
    ("pieces_without_a_head_stay", CORE + "stripe.c", "        group->is_over = true;", ""),
    ("pieces_go_before_all_is_told", CORE + "stripe.c", "    } else if (!is_settled(core)) {", "    } else if (false && !is_settled(core)) {"),
    ("pieces_go_though_their_head_is_there", STORE + "stripes.c", "value->is_headless = !was_granted[at] ||", "value->is_headless = was_granted[at] ||"),
    ("pins_are_not_told", CORE + "recover.c", "item->length, item->flags, item->group);", "item->length, 0, item->group);"),
    ("pins_begin_anew_under_each_master", CORE + "recover.c", "    if (left_ms == 0)\n        mc_pin_wish", "    if (true)\n        mc_pin_wish"),
    ("a_use_moves_the_end_of_a_pin", CORE + "replica.c", "    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {\n        if (object->hard) /* it ages not, and may have been loaded for a hint */\n            mc_hint_end(at.segment, at.slot);\n        if (!mc_replica_ages(at.segment, object))\n            continue;\n        struct mc_node *node", "    object->soft_until += object->soft ? 10 : 0;\n    for (struct mc_replica at = mc_replica_first(core, object); at.segment != NULL; at = mc_replica_next(core, at)) {\n        if (object->hard) /* it ages not, and may have been loaded for a hint */\n            mc_hint_end(at.segment, at.slot);\n        if (!mc_replica_ages(at.segment, object))\n            continue;\n        struct mc_node *node"),
    ("ends_of_pins_are_not_written", SEGMENT + "memory.c", "mc_pin_write(commit->flags, commit->pin_ms, ", "mc_pin_write(commit->flags, 0, "),
    ("groups_are_not_told", SEGMENT + "memory.c", "                             .group = __atomic_load_n(&slot->group, __ATOMIC_ACQUIRE)};", "                             .group = 0};"),
    ("an_upsert_pins_nothing", CORE + "replica.c", "    object->hard = successor->hard;", "    object->hard = 0;"),
    ("firm_pins_are_as_soft_ones", CORE + "firm.c", "    object->hard = 1;", ""),
    ("firm_pins_end_with_their_master", CORE + "recover.c", "        mc_firm_begin(object);", "        (void)object;"),
    ("owners_do_not_write_that_a_pin_is_firm", SEGMENT + "memory.c", "mc_pin_write(commit->flags, commit->pin_ms, ", "mc_pin_write(commit->flags & (uint8_t)~MC_PUT_FIRM_PIN, commit->pin_ms, "),
    ("firm_pins_have_no_bound", CORE + "firm.c", "    if (more && core->firm.bytes - had + has > mc_firm_budget(core))", "    if (false)"),
    ("what_is_there_keeps_the_pin_it_has", CORE + "put.c", "(start->flags & MC_PUT_NEW_PIN) == 0", "true"),
    # KV events: what masters tell of their keys, and who keeps an index by that. A snapshot that goes on under another master has no mutation:
    # its reader finds another epoch at once, and begins anew. What a reader does who falls behind while it reads is his.
    ("what_goes_is_not_told", CORE + "replica.c", "    if (object->visible && mc_core_tells_media(core))\n        mc_media_parted(core, object, segment);", ""),
    ("each_replica_is_told", CORE + "media.c", "    if (counts[medium_of(segment)] == 1)", "    if (counts[medium_of(segment)] >= 1)"),
    ("what_appears_on_a_disk_is_not_told", CORE + "media.c", "        if (counts[medium] > 0)\n", "        if (counts[medium] > 0 && medium == MC_MEDIUM_MEMORY)\n"),
    ("who_resumes_is_told_the_last_event_again", MASTER + "kv_events.c", "for (uint64_t number = after + 1; number", "for (uint64_t number = after > events->mark.first ? after : after + 1; number"),
    ("who_resumes_misses_an_event", MASTER + "kv_events.c", "after + 1 < mark->first || after", "after + 2 < mark->first || after"),
    ("who_was_away_for_a_failover_goes_on", MASTER + "kv_events.c", "page->is_gap = epoch != mark->epoch || after + 1", "page->is_gap = epoch == 0 || after + 1"),
    ("a_snapshot_is_of_the_moment_of_its_end", MASTER + "kv_snapshot.c", "    if (slice->cursor.epoch == 0)\n        slice->cursor = (struct mc_kv_cursor){.epoch = mark.epoch, .after = mark.last};",
     "    if (slice->cursor.epoch == 0 || slice->cursor.epoch == mark.epoch)\n        slice->cursor = (struct mc_kv_cursor){mark.epoch, mark.last, slice->cursor.at};"),
    ("a_snapshot_has_what_is_not_there_yet", CORE + "media.c", "    if (!object->visible || mc_object_is_piece(object))\n        return;\n", ""),
    # Hints
    ("what_is_dropped_goes_with_the_others", CORE + "evict.c", "oldest(core, segment, &first_policy, segment->first.count, first);", "oldest(core, segment, &first_policy, 0, first);"),
    ("what_is_dropped_is_removed", CORE + "hint.c", "    mc_hint_go_first(core, object, MC_FIRST_DROPPED);\n    return 0;\n}\n\n/* A pin", "    mc_object_drop(core, object, NULL);\n    return 0;\n}\n\n/* A pin"),
    ("firm_pins_end_when_they_are_dropped", CORE + "hint.c", "    if (object->hard)\n        return MC_ERR_OBJECT_IS_PINNED;", "    if (object->hard && !object->soft)\n        return MC_ERR_OBJECT_IS_PINNED;"),
    ("who_goes_first_takes_the_group_along", CORE + "evict.c", "        if (group != NULL && !mc_node_goes_first(node)) {", "        if (group != NULL) {"),
    ("what_pauses_goes_before_it_is_stored", CORE + "hint.c", "        return mc_offload_pause(core, object) ? MC_HINT_BEGUN : 0;", "        mc_hint_go_first(core, object, 0);"),
    ("hints_evict_what_is_pinned_softly", CORE + "offload.c", "    core->spares_soft = true;", ""),
    ("hints_load_as_much_as_they_like", CORE + "hint.c", "    return segment->fetched + units <= ", "    return true || segment->fetched + units <= "),
    # What owners keep of hints. That all replicas must say the same, and that what pauses goes only when a disk has it, is advice within advice:
    # tests/unit/test_core_hint_kept.c shows it. And a hint for what lay in a slot before comes late only behind a link that broke: test_memory.c.
    ("what_hints_say_is_not_told_to_owners", CORE + "hint_kept.c", "    if (segment->kind != MC_SEGMENT_MEMORY || segment->state", "    if (segment != NULL || segment->state"),
    ("owners_keep_no_hint", SEGMENT + "memory.c", "        __atomic_store_n(&slot->flags, mc_pin_hinted(hint), __ATOMIC_RELEASE);", "        (void)flags;"),
    ("an_inventory_has_no_hints", OWNER + "inventory.c", "        record.hint = mc_pin_hint(item->flags);", ""),
    ("the_next_master_takes_no_hint", CORE + "hint_kept.c", "    mc_hint_restore(core, object, segment, slot, hint == MC_HINT_DROP ? MC_FIRST_DROPPED : 0);\n", ""),
    ("a_use_is_not_told_to_owners", CORE + "hint.c", "        mc_hint_changed(core, segment, slot);\n    }\n    return was_first;", "        (void)core;\n    }\n    return was_first;"),
    ("a_pause_is_told_once_it_is_stored", CORE + "offload.c", "    if (is_other)\n        mc_hint_object_changed(core, mc_node_object(node));", "    (void)is_other;"),
    ("hints_that_a_link_has_lost_are_not_told_again", CORE + "hint_kept.c", "    segment->hint_notes.sent = 0;\n}", "    segment->hint_notes.first = segment->hint_notes.count = segment->hint_notes.sent = 0;\n}"),
    # Sessions
    ("sessions_are_not_renewed", STORE + "session.c", "        if (now_ms - hold->renewed_ms >= renew_ms) {", "        if (now_ms - hold->renewed_ms >= 100 * renew_ms) {"),
    ("sessions_protect_one_key", STORE + "session.c", "    if (--hold->key_count == 0)\n        hold_drop(sessions, hold, &links);\n    pthread", "    hold->link = --hold->key_count > 1 ? (link->broken = true, mc_link_return(store, link), NULL) : link;\n    if (hold->key_count == 0)\n        hold_drop(sessions, hold, &links);\n    pthread"),
    ("sessions_end_when_they_rest", STORE + "session.c", "now_ms - hold->used_ms >= SESSION_IDLE_MS) {", "now_ms - hold->used_ms >= SESSION_IDLE_MS / 60) {"),
    ("a_session_mixes_versions", STORE + "get_call.c", "    if (rc == 0 && call->ranges != NULL && call->count > 1)", "    if (rc == 0 && call->ranges != NULL && call->count > 1 && !call->session)"),
    ("put_sessions_lose_a_byte", STORE + "session_put.c", "item->source, (size_t)item->size);", "item->source, (size_t)item->size - (item->size > 100));"),
    ("revoked_sessions_are_put", STORE + "session_put.c", "    if (whole && put)\n", "    if (whole && count + put > 0)\n"),
    # Copies, moves, drains
    # Three rules have no mutation, since no seed of some thousands comes by the one moment in which they matter; tests of
    # tests/unit/test_core_replace.c fail without them: copies end with what they copy (test_copy_of_what_goes), none carries a value past a
    # removal of all (test_copy_does_not_escape_a_removal_of_all), and an upsert that evicted its own old value waits until that is cleared
    # (test_value_that_makes_room_for_the_next).
    ("copies_replace_whatever_is_there", STORE + "copy.c", "&put, config, layout->described.version);", "&put, config, 0);"),
    ("copies_are_not_pinned", STORE + "copy.c", "                                         .with_hard_pin = (layout->described.pins & MC_PUT_HARD_PIN) != 0,", "                                         .with_hard_pin = false,"),
    ("copies_are_one_byte_short", STORE + "copy.c", "    if (rc == 0) {\n        struct mc_put_item put", "    part.iov_len -= part.iov_len > 100;\n    if (rc == 0) {\n        struct mc_put_item put"),
    ("drained_segments_take_puts", CORE + "place.c", "    return segment->state == MC_SEGMENT_OK && !segment->leaving &&", "    return segment->state == MC_SEGMENT_OK &&"),
    ("a_heartbeat_ends_a_drain", CORE + "member.c", "            segment->leaving = item.leaving != 0 || segment->drain;", "            segment->leaving = item.leaving != 0;"),
    ("drains_leave_some", CORE + "drain.c", "        if (object != NULL && object->visible)", "        if (object != NULL && object->visible && object->length % 3 != 0)"),
    ("drains_remove_what_they_should_move", STORE + "copy.c", "            rc = rewrite(store, key, &layout, names, wanted(&layout, segment, NULL, 0, names), layout.count);", "            rc = 0 * (int)sizeof(names);\n        if (rc == 0)\n            return mc_store_remove(store, &key, 1, true, &rc);"),
    # Disks. The floor of a disk has no mutation: behind it stands that it is mounted only when no store is under way. What is told as lost
    # without the journal, and what an inventory leaves out, no seed of 500 meets: test_lost_without_a_journal and test_unlisted_region of
    # tests/unit/test_disk.c do.
    ("disk_answers_before_the_journal_has_it", DISK + "journal.c", "    if (task->is_removal && journal->gathered_count > 0) {", "    if (0) {",
     DISK + "journal.c", "    if (task->is_removal && journal->stage == MC_DISK_JOURNAL_BATCH) {", "    if (0) {"),
    ("disk_journal_is_not_synced", DISK + "journal.c", "    mc_disk_flight_start(disk, flight, MC_DISK_SYNC, flight->request.fd, NULL, 0, 0, batch_synced);", "    batch_synced(flight, result);"),
    ("disk_journal_forgets_what_is_needed", DISK + "journal.c", "            if (!is_needed(disk, &clear))", "            if (is_needed(disk, &clear) || true)"),
    ("disk_regions_go_without_the_journal", DISK + "evict.c", "    mc_disk_journal_kill(disk, victim->region);", "    mc_disk_victim_killed(disk, 0);"),
    ("disk_tells_lost_what_the_journal_has_not", DISK + "journal.c", "    if (lost > 0 && code == 0)", "    if (lost > 0)"),
    ("disk_regions_that_cannot_be_read_come_back", DISK + "recover.c", "        region->is_unread = true;\n        disk->recovery->unread++;", "        region->is_unread = false;"),
    ("disk_lists_what_it_can_read", DISK + "read.c", "        disk->victim.unread = walk->region;\n        return;", "        result = 0;"),
    ("disk_finds_lives_that_are_dead", DISK + "recover.c", "    if (disk->regions[walk->region].killed_sequence >= walk->header.sequence)\n        return;", ""),
    ("disk_finds_what_was_removed", DISK + "recover.c", "    if (mc_disk_dead_has(&recovery->dead, record->entry.generation))\n        return;", ""),
    ("disk_believes_what_it_reads", DISK + "read.c", "result == (int64_t)task->bytes ? mc_disk_extent_check(task->buffer, &task->entry)", "result == (int64_t)task->bytes ? 0"),
    ("disk_header_comes_after_its_groups", DISK + "region.c", "    if (append->header_is_busy)\n        return false;\n    if (append->open", "    if (append->open"),
    ("clear_passes_a_store", OWNER + "disk.c", "                is_later = true;\n                atomic_store(&move->is_cleared, true);", "                is_later = false;"),
    ("disk_is_mounted_while_stores_are_under_way", OWNER + "disk.c", "owner->disks[i].state == MC_OWNER_DISK_IDLE && owner->disks[i].under_way == 0 &&", "owner->disks[i].state == MC_OWNER_DISK_IDLE &&"),
    # A slot that changed while it was copied: its bytes match no sum, unless those of the next value were whole already.
    ("store_looks_at_the_slot_once", OWNER + "disk_move.c", "    if (!mc_slot_unchanged(slot, move->memory_generation))\n        return MC_ERR_REPLICA_IS_GONE;\n    if (!is_sound(move->buffer, &copy))\n        return MC_ERR_CHECKSUM_MISMATCH;", ""),
    ("store_takes_any_generation", OWNER + "disk_move.c", "    if (!mc_slot_read(slot, move->memory_generation, &copy))", "    if (!mc_slot_read(slot, atomic_load(&slot->generation), &copy))",
     OWNER + "disk_move.c", "    if (!mc_slot_unchanged(slot, move->memory_generation))", "    if (!mc_slot_unchanged(slot, atomic_load(&slot->generation)))"),
    ("contents_of_a_disk_have_no_epoch", OWNER + "disk.c", "    if (disk->mark.epoch != epoch && !disk->gives_up) {", "    if (0) {"),
    ("disk_forgets_its_contact", OWNER + "disk.c", "    if (then_ms == 0 || now_ms < then_ms || now_ms - then_ms >= UINT32_MAX)\n        return UINT32_MAX;\n    return (uint32_t)(now_ms - then_ms);", "    return now_ms < then_ms;"),
    # What a disk with a broken journal may not do otherwise takes the ends of a master and of an owner within seconds: that it is
    # empty only when the journal says so, that the identity comes before the word, that it is mounted no more and keeps no epoch,
    # tests/unit/test_owner_disk.c shows; that it lists nothing, test_disk.c; that one that has left departs late, test_core_sweep.c.
    ("disk_with_a_broken_journal_is_kept", OWNER + "disk.c", "        disk->cannot_clear = true;\n        mc_owner_disk_give_up(disk);", "        disk->cannot_clear = true;"),
    ("disk_is_not_emptied", OWNER + "disk.c", "    mc_owner_disk_empty(disk);\n}", "    mc_owner_disk_emptied(disk);\n}"),
    ("what_is_being_stored_is_forgotten", CORE + "offload.c", "        mc_node_clear(core, segment, slot, object);\n    else", "        mc_node_free(core, segment, slot);\n    else"),
    ("what_is_being_loaded_is_cleared_only", CORE + "offload.c", "        mc_node_cut(core, segment, slot, object, segment->member->writer);", "        mc_node_clear(core, segment, slot, object);"),
    ("clears_are_told_to_a_disk_once", CORE + "segment.c", "    segment->clear_unsent = segment->clears.head;\n    segment->cut_unsent = segment->cuts.head;", "    if (segment->kind == MC_SEGMENT_MEMORY)\n        segment->clear_unsent = segment->clears.head;\n    segment->cut_unsent = segment->cuts.head;"),
    ("epochs_of_disks_are_not_judged", CORE + "segment.c", "past->epoch == 0 ? NULL : mc_recover_unwanted", "past->epoch == 0 || mounting->wire.kind == MC_SEGMENT_DISK ? NULL : mc_recover_unwanted",
     CORE + "recover.c", "    return segment->is_earlier ? mc_evidence_against(", "    return segment->is_earlier && segment->kind != MC_SEGMENT_DISK ? mc_evidence_against("),
    ("what_lies_on_a_disk_is_of_its_generation", CORE + "recover.c", "    bool is_told = segment->kind == MC_SEGMENT_DISK && item->version != 0;", "    bool is_told = false;"),
    ("removals_of_all_pass_what_is_being_stored", CORE + "offload.c", "           !mc_jobs_will_meet(core, object);\n}", "           true;\n}"),
    # Want, limits, versions
    ("memory_is_always_there", STORE + "get.c", "    if (work.transfers != NULL && work.scratch != NULL && work.owner_of != NULL && work.has_others != NULL)", "    if (true)"),
    ("values_that_found_no_memory_are_stored", STORE + "put.c", "        items[i]->result = whole ? one->code : MC_ERR_NO_MEMORY;", "        items[i]->result = whole ? one->code : 0;"),
    ("generations_begin_anew", CORE + "put.c", "    if (core->counter_end - core->counter <= capacity) {", "    if (core->counter_end == capacity) {"),
    ("earlier_builds_are_strangers", "src/store/wire/version.c", "    if (version_min > version_max || ", "    if (features == 0 || version_min > version_max || "),
    ("put_waits_without_end", STORE + "put.c", "until_ns < work->deadline_ns ? until_ns : work->deadline_ns, &wait, &reader);", "work->deadline_ns + 60000000000ull, &wait, &reader);"),
    # Quotas of tenants (with --quotas). What a put may add is looked at before and after room was made: either look alone lets nobody in.
    ("quota_takes_what_fits_alone", CORE + "account.c", "return wanted->can_fit && account->bytes <= wanted->bytes_left && account->objects <= wanted->objects_left;", "return wanted->can_fit;"),
    ("quota_counts_no_objects", CORE + "account.c", "account->bytes <= wanted->bytes_left && account->objects <= wanted->objects_left;", "account->bytes <= wanted->bytes_left;"),
    ("quota_counts_one_replica", CORE + "account.c", "    struct room_wanted wanted = wanted_of(core, account, object, length * replicas);", "    replicas = 1;\n    struct room_wanted wanted = wanted_of(core, account, object, length * replicas);"),
    ("quota_forgets_what_went_with_its_group", CORE + "account.c", "        object = mc_objects_find(&core->objects, key); /* a value may have gone with its group */\n        bool had = wanted.replaces;\n        wanted = wanted_of(core, account, object, length * replicas);\n        if (had == wanted.replaces)\n            break;", "        break;"),
    ("quotas_are_no_shares", CORE + "account.c", "return sum <= capacity ? bytes : (uint64_t)((double)bytes * (capacity / sum));", "(void)sum, (void)capacity;\n    return bytes;"),
    ("who_has_no_quota_is_let_in", CORE + "account.c", "if (core->config.quotas ? account != NULL && account->has_quota\n", "if (core->config.quotas ? true\n"),
    ("guarantee_keeps_nothing", CORE + "account.c", "    return (bytes > 0 && account->bytes < bytes + object->length) || account->objects <= quota->guaranteed_objects;", "    return bytes == UINT64_MAX;"),
    ("guarantee_of_bytes_is_one_value_short", CORE + "account.c", "account->bytes < bytes + object->length)", "account->bytes < bytes)"),
    ("guarantee_of_objects_keeps_nothing", CORE + "account.c", " || account->objects <= quota->guaranteed_objects;", ";"),
    ("guarantee_is_not_asked_for_by_groups", CORE + "evict.c", "        (mc_core_counts(core) && mc_account_is_owed(core, object)))\n        return false; /* of what", "        false)\n        return false; /* of what"),
    ("usage_keeps_what_left", CORE + "account.c", "    account->bytes -= object->length;", "    account->bytes -= object->length / 2;"),
]


def misfits(source):
    """What of the list does not fit the code any more."""
    problems = []
    for name, *changes in MUTATIONS:
        texts = {}
        for path, old, new in zip(changes[::3], changes[1::3], changes[2::3]):
            text = texts.get(path) or (pathlib.Path(source) / path).read_text()
            if text.count(old) != 1:
                problems.append(f"{name}: its text occurs {text.count(old)} times in {path}: {old.strip()[:60]}")
            texts[path] = text.replace(old, new)
    return problems


class Build:
    def __init__(self, source, scratch):
        self.source, self.scratch = pathlib.Path(source).resolve(), pathlib.Path(scratch).resolve()
        self.build = self.source / ".cache/build-release"
        self.commands = {}
        for entry in json.loads((self.build / "compile_commands.json").read_text()):
            if entry["output"].startswith("sim/libsim"):
                path = (self.build / entry["file"]).resolve().relative_to(self.source)
                self.commands[str(path)] = entry
        listed = subprocess.run(["ninja", "-C", self.build, "-t", "commands", "sim/mooncake_sim"], capture_output=True, text=True, check=True)
        lines = listed.stdout.splitlines()
        self.link = next(line for line in lines if " -o sim/mooncake_sim " in line)
        self.product = next(line for line in lines if "product.sh" in line)

    def compile(self, place, path, text):
        """Compiles that file with another text; the objects it replaces and is."""
        changed = place / path.replace("/", "_")  # there are two put.c
        changed.write_text(text)
        entry = self.commands[path]
        fresh = changed.with_suffix(".o")
        command = entry["command"].replace(" -Werror ", " -w ").replace(entry["output"], str(fresh))
        command = command.replace(" -c " + entry["file"], f" -iquote {(self.source / path).parent} -c {changed}")
        run = subprocess.run(command, shell=True, cwd=self.build, capture_output=True, text=True)
        if run.returncode != 0:
            raise ValueError("does not compile: " + run.stderr.strip()[-300:])
        return str(self.build / entry["output"]), str(fresh)

    def make(self, name, *changes):
        """The simulator with these changes; None and why when one of them does not fit."""
        place = self.scratch / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        texts = {}
        for path, old, new in zip(changes[::3], changes[1::3], changes[2::3]):
            text = texts.get(path) or (self.source / path).read_text()
            if text.count(old) != 1:
                return None, f"its text occurs {text.count(old)} times in {path}: {old.strip()[:60]}"
            texts[path] = text.replace(old, new)
        try:
            replaced = dict(self.compile(place, path, text) for path, text in texts.items())
        except ValueError as why:
            return None, str(why)
        words = []
        for word in self.product.split():
            directory = self.build / (word + ".p")
            if word.endswith(".a") and not directory.is_dir():
                directory = pathlib.Path(word + ".p")
            if word.endswith(".a"):
                objects = [replaced.get(str(one), str(one)) for one in sorted(directory.glob("*.o"))]
                library = place / pathlib.Path(word).name
                subprocess.run(["ar", "cr", str(library), *objects], check=True)
                word = str(library)
            words.append(str(place / "product.o") if word == "sim/simproduct.o" else word)
        subprocess.run(" ".join(words), shell=True, cwd=self.build, check=True, capture_output=True)
        link = self.link.replace("-o sim/mooncake_sim ", f"-o {place}/mooncake_sim ").replace("sim/simproduct.o", str(place / "product.o"))
        subprocess.run(link, shell=True, cwd=self.build, check=True, capture_output=True)
        return place / "mooncake_sim", ""


SEED_FAILED = re.compile(r"^seed (\d+): (.*)$", re.M)


def catch(build, program, options, seeds):
    """What the mutated program says, and its exit status. A seed that fails without the mutation, too, catches nothing: with
    --noteless there are some for ever (seeds/open), and any change of the product's timing moves them to other seeds."""
    def run(*command):
        ran = subprocess.run(command, cwd=build.source, capture_output=True, text=True, timeout=600)
        return ran.stdout + ran.stderr, ran.returncode

    if "--list" in options:  # the tests run these, which show nothing
        return run(program, *options, "--no-shrink")
    first = 1
    while first <= seeds:
        text, code = run(program, *options, "--from", str(first), "--seeds", str(seeds + 1 - first), "--skip", "sim/seeds/open", "--no-shrink")
        found = SEED_FAILED.search(text)
        if code != 1 or found is None or run(build.build / "sim/mooncake_sim", *options, "--seed", found.group(1))[1] == 0:
            return text, code
        first = int(found.group(1)) + 1
    return "", 0


def judge(build, mutation, seeds):
    name = mutation[0]
    program, why = build.make(*mutation)
    if program is None:
        return name, None, why
    try:
        # What was found among hundred thousands shows what is rare, and is quick; then all that there is, and the same seeds without hard
        # faults, and without stories. Without a note a master learns from those who are there alone, so what they say is tried without one, too.
        lists = {name: ["--list", "sim/seeds/" + name] for name in ("notes", "stories", "hard", "hard_notes", "all_hard", "hard_disks", "lease", "wide", "whole", "dozes", "disks", "quotas")}
        with_disks = ([*lists["disks"], "--disks"], ["--disks"])
        is_of_quotas = any("quota" in word or "guarantee" in word or word.endswith("account.c") for word in (name, *mutation[1::3]))
        is_of_threads, is_of_proofs, is_of_blanks = "data_thread" in name, "proof" in name, "blank" in name
        is_of_stripes = "_head" in name.removeprefix("disk_header") or any(word.endswith(("stripe.c", "stripes.c")) for word in mutation[1::3])
        is_of_disks = any("disk" in word or "offload" in word for word in (name, *mutation[1::3]))
        others = ([*lists["notes"], "--mild"], [*lists["stories"], "--mild", "--noteless"], [*lists["hard"], "--narrow"],
                  [*lists["hard_notes"], "--narrow"], [*lists["all_hard"], "--hard", "--narrow"], [*lists["hard_disks"], "--hard"], [*lists["lease"], "--hard", "--lease"], [*lists["wide"], "--wide", "--diskless"],
                  lists["whole"], [*lists["quotas"], "--quotas"], [*lists["dozes"], "--dozes", "--diskless"],
                  [], ["--narrow", "--noteless"], ["--wide"], ["--mild", "--noteless"], ["--plain", "--noteless"])
        for options in (["--quotas"], ["--quotas", "--wide"]) if is_of_quotas else \
                (["--list", "sim/seeds/blanks", "--blanks"], ["--blanks"], ["--blanks", "--hard"], ["--blanks", "--lease"]) if is_of_blanks else \
                (["--data-threads", "--hard"], ["--data-threads"]) if is_of_threads else \
                (["--proofs", "--hard"], ["--proofs", "--disks"], ["--proofs"]) if is_of_proofs else \
                (["--stripes"], ["--stripes", "--hard"], ["--stripes", "--quotas"]) if is_of_stripes else with_disks if is_of_disks else (*others, *with_disks):
            text, code = catch(build, program, options, seeds)
            if code != 0:
                break
    except subprocess.TimeoutExpired:
        text, code = "", "hangs"
    shutil.rmtree(build.scratch / name, ignore_errors=True)
    if code == 0:
        return name, False, f"NOT CAUGHT by {seeds} seeds"
    found = SEED_FAILED.search(text) or re.search(r"signal (\d+) in seed (\d+)", text)
    if code == "hangs":
        return name, True, "a seed does not end"
    return name, True, " ".join([*options, found.group(0)[:140] if found else text.strip()[-140:]])


def main():
    if sys.argv[2:] == ["--check"]:
        print("\n".join([*misfits(sys.argv[1]), f"{len(MUTATIONS)} mutations"]))
        return 1 if misfits(sys.argv[1]) else 0
    arguments, seeds, jobs = sys.argv[3:], 6000, 2
    if "--seeds" in arguments:
        at = arguments.index("--seeds")
        seeds = int(arguments[at + 1])
        del arguments[at : at + 2]
    if "--jobs" in arguments:
        at = arguments.index("--jobs")
        jobs = int(arguments[at + 1])
        del arguments[at : at + 2]
    build = Build(sys.argv[1], sys.argv[2])
    wanted = [one for one in MUTATIONS if not arguments or one[0] in arguments]
    caught = missed = broken = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for name, verdict, text in pool.map(lambda one: judge(build, one, seeds), wanted):
            print(f"{name:45} {text}", flush=True)
            caught += verdict is True
            missed += verdict is False
            broken += verdict is None
    print(f"{len(wanted)} mutations: {caught} caught, {missed} not caught, {broken} do not fit the code any more")
    return 0 if caught == len(wanted) else 1


sys.exit(main())
