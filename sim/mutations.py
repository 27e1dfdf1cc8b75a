"""Breaks the code in many ways, one at a time, and lists which seed of the simulator catches each.

usage: mutations.py SOURCE SCRATCH [--seeds N] [--jobs N] [NAME...]

A mutation is (name, file, text, other text); the text occurs once in the file. Only the one object is compiled again, with the
command that the build used; so `./dev build` comes first. The last line counts; exit status 1 when one was not caught.
"""

import concurrent.futures
import json
import pathlib
import re
import shutil
import subprocess
import sys

ENGINE, MASTER, STORE = "src/engine/", "src/master/", "src/store/"

MUTATIONS = [
    # What a slot says, and who may write it
    ("commit_takes_any_generation", ENGINE + "memory.c", "if (commit->generation <= generation_read(slot) || is_below_floor", "if (is_below_floor"),
    ("commit_skips_the_floor", ENGINE + "memory.c", "if (commit->generation <= generation_read(slot) || is_below_floor(memory, commit->generation))", "if (commit->generation <= generation_read(slot))"),
    ("write_skips_generation_and_floor", ENGINE + "memory.c", "return generation > generation_read(&memory->file.slots[slot]) && !is_below_floor(memory, generation)", "return slot != UINT32_MAX"),
    ("clear_forgets_the_generation", ENGINE + "memory.c", "    if (generation > generation_read(slot)) /* a second store", "    if (generation > generation_read(slot) && 0) /* a second store"),
    ("clear_does_nothing", ENGINE + "memory.c", "if (generation_read(&memory->file.slots[number]) <= generation)", "if (generation_read(&memory->file.slots[number]) < generation)"),
    ("clear_takes_later_ones_too", ENGINE + "memory.c", "if (generation_read(&memory->file.slots[number]) <= generation)", "if (true)"),
    ("reader_skips_the_generation", ENGINE + "memory.c", "if (generation_read(slot) != generation || state_read(slot) != MC_SLOT_LIVE)\n        return false;", "generation = generation_read(slot);\n    if (state_read(slot) != MC_SLOT_LIVE)\n        return false;"),
    ("reader_skips_the_state", ENGINE + "memory.c", "if (generation_read(slot) != generation || state_read(slot) != MC_SLOT_LIVE)", "if (generation_read(slot) != generation)"),
    ("epoch_raises_no_floor", ENGINE + "memory.c", "atomic_store(&memory->file.header->floor, epoch << MC_EPOCH_SHIFT);", ""),
    # Copies
    ("reader_believes_without_checksum", ENGINE + "gather.c", "return rc < 0 ? rc : crc == slot->crc ? 0 : MC_ERR_CHECKSUM_MISMATCH;", "return rc < 0 ? rc : 0;"),
    ("reader_looks_no_second_time_nor_at_checksum", ENGINE + "gather.c", "if (rc == 0 || rc == MC_ERR_CHECKSUM_MISMATCH)", "if (rc == MC_ERR_CHECKSUM_MISMATCH)\n        rc = 0;\n    if (0)"),
    ("reader_skips_the_key_hash", ENGINE + "gather.c", "seen.length != transfer->object_length ||\n        seen.hash_low != transfer->hash_low || seen.hash_high != transfer->hash_high", "seen.length != transfer->object_length"),
    ("writer_sums_before_the_end", ENGINE + "gather.c", "crc = copy_crc(target + at, source, taken, crc, stream);\n            at += taken;", "crc = copy_crc(target + at, source, taken - (taken > 100), crc, stream);\n            at += taken;"),
    # Writers that may still be at work
    ("cut_waits_for_nobody", ENGINE + "memory_writers.c", "    return found;\n}\n\nuint32_t mc_segment_memory_slot_top", "    return found && 0;\n}\n\nuint32_t mc_segment_memory_slot_top"),
    ("writer_looks_not_at_the_slot", ENGINE + "writers.c", "        atomic_load(&slots[writing->slot].generation) < generation)", "        true)"),
    ("writer_says_nothing", ENGINE + "writers.c", "        if (mc_intent_read(&writer->intents[i], &writing) && writing.slot == slot && writing.generation <= generation)", "        if (0 && mc_intent_read(&writer->intents[i], &writing))"),
    ("living_writers_are_reset", ENGINE + "memory_writers.c", "if (entry == 0 || memory->attached[entry] || mc_writers_locked(fd, entry, 1))", "if (entry == 0 || memory->attached[entry])"),
    # The master: visibility and space
    ("answer_before_all_is_live", MASTER + "put.c", "    if (object->granted == 0 && object->live > 0) {", "    if (object->live > 0 && !object->visible) {"),
    ("live_means_nothing_to_the_put", MASTER + "put.c", "item.code == 0 ? GRANT_LIVE : GRANT_CLEAR", "GRANT_CLEAR"),
    ("refused_commit_is_live", MASTER + "put.c", "item.code == 0 ? GRANT_LIVE : GRANT_CLEAR", "GRANT_LIVE"),
    ("live_of_any_generation", MASTER + "put.c", "                     mc_node_generation(core, node) == item.generation;", "                     true;"),
    ("existing_key_is_put_again", MASTER + "put.c", "            return MC_ERR_OBJECT_ALREADY_EXISTS;\n        /* Only", "            (void)0;\n        /* Only"),
    ("dead_writers_space_is_cleared_only", MASTER + "put.c", "        if (how == GRANT_CUT)", "        if (0)"),
    ("space_is_free_before_cleared", MASTER + "replica.c", "    if (segment->clear_unsent == MC_NODE_NONE)\n        segment->clear_unsent = slot;\n    node->replica_next_slot = MC_NODE_NONE;", "    if (segment->clear_unsent == MC_NODE_NONE)\n        segment->clear_unsent = slot;\n    node->replica_next_slot = MC_NODE_NONE;\n    mc_list_remove(segment, &segment->clears, slot);\n    segment->clearing -= node->size;\n    segment->clear_unsent = segment->clears.head;\n    mc_node_free(core, segment, slot);\n    return;"),
    ("remove_waits_for_nobody", MASTER + "replica.c", "    if (wait != NULL && !mc_segment_departed(segment)) {", "    if (0) {"),
    ("quarantine_is_never_left", MASTER + "replica.c", "        if (node != NULL && node->state == state && mc_node_generation(core, node) == item.generation)", "        if (node != NULL && node->state == state && state == MC_NODE_CLEARING && mc_node_generation(core, node) == item.generation)"),
    ("cleared_is_not_heard", MASTER + "replica.c", "        if (node != NULL && node->state == state && mc_node_generation(core, node) == item.generation)", "        if (node != NULL && node->state == state && state != MC_NODE_CLEARING && mc_node_generation(core, node) == item.generation)"),
    ("clearing_forgets_its_sum", MASTER + "replica.c", "    segment->clearing -= node->size;\n    uint32_t wait", "    uint32_t wait"),
    # The master: recovery
    ("stale_contents_are_taken", MASTER + "recover.c", "!core->refuse_earlier && !stale(core, epoch, contact_ms);", "!core->refuse_earlier;"),
    ("no_contents_are_taken", MASTER + "recover.c", "    return mc_recover_open(core) && !core->refuse_earlier && !stale(core, epoch, contact_ms);", "    return false;"),
    ("tombstones_are_ignored", MASTER + "recover.c", "        if (!tomb_lets(core, object, version))", "        if (0)"),
    ("no_tombstone_for_the_unknown", MASTER + "recover.c", "    if (!mc_recover_open(core) || core->refuse_earlier)\n        return;\n    struct mc_object *object = mc_objects_find", "    if (true)\n        return;\n    struct mc_object *object = mc_objects_find"),
    ("an_older_version_wins", MASTER + "recover.c", "        if (known > version)\n            return NULL;", "        if (known < version)\n            return NULL;"),
    ("versions_are_mixed", MASTER + "recover.c", "        if (known == version)\n            return object->length == item->length && object->live", "        if (true)\n            return object->live"),
    ("generations_of_the_past_are_ours", MASTER + "recover.c", "    node->base = base & 0xff;", "    node->base = 0;"),
    ("refused_entries_lie_free", MASTER + "recover.c", "    mc_node_clear(core, segment, slot, NULL);\n    if (!counted)", "    segment->used -= node->size;\n    mc_node_free(core, segment, slot);\n    if (0)"),
    ("offered_before_all_is_told", MASTER + "recover.c", "    if (!segment->recovering || segment->inventory != MC_INVENTORY_NONE || segment->dropping || grace)", "    if (!segment->recovering || grace)"),
    ("nothing_waits_for_writers_of_the_past", MASTER + "recover.c", "    mc_node_cut(core, segment, item->slot, writer);", "    segment->used -= node->size;\n    mc_node_free(core, segment, item->slot);"),
    ("a_late_master_is_followed", MASTER + "recover.c", "    if (epoch > core->epoch) {\n        mc_recover_wish_epoch", "    if (0) {\n        mc_recover_wish_epoch"),
    ("remove_in_the_window_leaves_no_tombstone", MASTER + "recover.c", "    if (core->refuse_earlier || core->tombstone_count >= MC_TOMBSTONES_MAX) {\n        mc_recover_refuse(core);", "    if (true) {"),
    # The owner and the client
    ("owner_forgets_early_commits", STORE + "owner_master.c", "        if (met != 0) {\n            mc_owner_news_drop", "        if (true) {\n            mc_owner_news_drop"),
    ("mount_is_no_contact", STORE + "owner_master.c", "mc_owner_contact(owner, reply->epoch, reply->inventory == 0, owner->mount_sent_ms);", ""),
    ("owner_keeps_its_epoch", STORE + "owner_master.c", "    mc_owner_epoch_set(owner, owner->master_epoch);", ""),
    ("stale_owner_keeps_its_memory", STORE + "owner_master.c", "    int rc = memory_renew(owner);\n    if (rc == 0 && !was_mounted)", "    int rc = 0;\n    if (rc == 0 && !was_mounted)"),
    ("cleared_is_said_before_it_is_done", STORE + "owner_master.c", "        if (mc_segment_memory_clear(owner->memory, slot.slot, slot.generation) < 0) {", "        if (slot.slot == UINT32_MAX) {"),
    ("put_forgets_failed_transfers", STORE + "put.c", "            if (!all && transfer->result >= 0)", "            if (!all)"),
    ("put_waits_without_end", STORE + "put.c", "until_ns < work->deadline_ns ? until_ns : work->deadline_ns, &reader);", "work->deadline_ns + 60000000000ull, &reader);"),
]


class Build:
    def __init__(self, source, scratch):
        self.source, self.scratch = pathlib.Path(source).resolve(), pathlib.Path(scratch)
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

    def make(self, name, path, old, new):
        """The simulator with that change; None when the text is not there once."""
        place = self.scratch / name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        text = (self.source / path).read_text()
        if text.count(old) != 1:
            return None, f"its text occurs {text.count(old)} times in {path}"
        changed = place / pathlib.Path(path).name
        changed.write_text(text.replace(old, new))
        entry = self.commands[path]
        command = entry["command"].replace(" -Werror ", " -w ").replace(entry["output"], str(place / "changed.o"))
        command = command.replace(" -c " + entry["file"], f" -iquote {(self.source / path).parent} -c {changed}")
        run = subprocess.run(command, shell=True, cwd=self.build, capture_output=True, text=True)
        if run.returncode != 0:
            return None, "does not compile: " + run.stderr.strip()[-300:]
        words = []
        for word in self.product.split():
            directory = self.build / (word + ".p")
            if word.endswith(".a") and not directory.is_dir():
                directory = pathlib.Path(word + ".p")
            if word.endswith(".a"):
                objects = sorted(str(one) for one in directory.glob("*.o"))
                wanted = str(self.build / entry["output"])
                objects = [str(place / "changed.o") if one == wanted else one for one in objects]
                library = place / pathlib.Path(word).name
                subprocess.run(["ar", "cr", str(library), *objects], check=True)
                word = str(library)
            words.append(str(place / "product.o") if word == "sim/simproduct.o" else word)
        subprocess.run(" ".join(words), shell=True, cwd=self.build, check=True, capture_output=True)
        link = self.link.replace("-o sim/mooncake_sim ", f"-o {place}/mooncake_sim ").replace("sim/simproduct.o", str(place / "product.o"))
        subprocess.run(link, shell=True, cwd=self.build, check=True, capture_output=True)
        return place / "mooncake_sim", ""


def judge(build, mutation, seeds):
    name = mutation[0]
    program, why = build.make(*mutation)
    if program is None:
        return name, None, why
    try:
        run = subprocess.run([program, "--seeds", str(seeds), "--no-shrink", "--skip", build.source / "sim/seeds/open"], capture_output=True, text=True, timeout=240)
        text = run.stdout + run.stderr
        code = run.returncode
    except subprocess.TimeoutExpired:
        text, code = "", "hangs"
    shutil.rmtree(build.scratch / name, ignore_errors=True)
    if code == 0:
        return name, False, f"NOT CAUGHT by {seeds} seeds"
    found = re.search(r"^seed (\d+): (.*)$", text, re.M) or re.search(r"signal (\d+) in seed (\d+)", text)
    if code == "hangs":
        return name, True, "a seed does not end"
    return name, True, found.group(0)[:140] if found else text.strip()[-140:]


def main():
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
