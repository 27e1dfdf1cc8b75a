"""The page of a master in chromium: what it shows of 1, 8 and 1,000 nodes, what it lets people do, and that names and keys are text.

With MC_TEST_PICTURES=FOLDER a picture of each size and number of nodes is left there, to be looked at.
"""
import json
import os
import pathlib
import resource
import struct
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "system"))

import keyed  # noqa: E402
from browser import CHROMIUM, Browser  # noqa: E402
from cluster import Master, request  # noqa: E402
from etcd import Etcd  # noqa: E402
from keyed import Key  # noqa: E402
from older_master import OlderMaster  # noqa: E402
from test_ha import CLUSTER, Masters  # noqa: E402
from test_recovery_progress import Returning  # noqa: E402
from test_slow import Caller, begin, end  # noqa: E402
from wire import (DISKS, EXIST, EXIST_REPLY, FIRM_PIN, FIRM_PINS, HINTS, LIVE, PUT_DONE, PUT_GRANTED, PUT_START, SOFT_PIN, FakeOwner, data, record, records)  # noqa: E402

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser here")
MIB = 1 << 20
EVIL = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
SIZES = {"wide": (1440, 900), "tablet": (820, 1180), "phone": (390, 844)}


class Pool:
    """A master with nodes that send no heartbeats and hold nothing; the first has an evil name where there are some."""

    def __init__(self, count, *flags, names=None, features=0):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
        self.master = Master("--client_ttl=3600s", *flags)
        self.features, self.keys = features, {}  # keys by segment
        self.names = names or [f"node-{number:04}.rack-{number // 40:02}.example.org:12301" for number in range(count)]

    def __enter__(self):
        self.master.__enter__()
        self.owners = [FakeOwner(self.master.port, name, capacity=64 * MIB * (1 + number % 3), slots=4096, features=self.features) for number, name in enumerate(self.names)]
        self.by_segment = {owner.segment: owner for owner in self.owners}
        self.url = f"http://127.0.0.1:{self.master.metrics_port}/"
        return self

    def __exit__(self, *error):
        for owner in self.owners:
            owner.close()
        self.master.__exit__(*error)

    def put(self, keys, length):
        """By the first node; wherever the master places them."""
        caller = self.owners[0].caller
        items = records([struct.pack("<Q", length) + data(key) for key in keys])
        granted = caller.call(PUT_START, PUT_GRANTED, record(struct.pack("<BI", 1, 0)) + items + records([]) + records([]))
        granted.record()
        assert {struct.unpack_from("<i", head)[0] for head in granted.list()} == {0}
        places = [struct.unpack_from("<IIQQ", place) for place in granted.list()]
        for key, place in zip(keys, places):
            self.keys.setdefault(place[0], []).append(key)
        for segment in {place[0] for place in places}:
            self.by_segment[segment].owner.send(LIVE, record(struct.pack("<I", segment)) + records([struct.pack("<IiQ", place[1], 0, place[2]) for place in places if place[0] == segment]))
        caller.receive(PUT_DONE)

    def look_for(self, keys):
        self.owners[0].caller.call(EXIST, EXIST_REPLY, record() + records([data(key) for key in keys]))


def text_of(browser, element):
    return browser.eval(f"document.getElementById({json.dumps(element)}).innerText")


def click(browser, selector):
    browser.eval(f"document.querySelector({json.dumps(selector)}).click()")


def settled(browser):
    """Two more rounds have been shown."""
    turns = browser.eval("Number(document.body.dataset.turns)")
    browser.wait(f"Number(document.body.dataset.turns) >= {turns} + 2")


def leave_picture(browser, name):
    if os.environ.get("MC_TEST_PICTURES"):
        browser.picture(pathlib.Path(os.environ["MC_TEST_PICTURES"]) / f"{name}.png")


def test_an_empty_master():
    with Pool(0) as pool, Browser() as browser:
        browser.open(pool.url)
        assert "leader, clients connect to " + pool.master.address in text_of(browser, "state") and "No node has joined yet" in text_of(browser, "troubles")
        assert text_of(browser, "place") == "none" and browser.problems == []


def test_names_and_keys_are_text():
    with Pool(2, names=[EVIL, "<b>bold</b>:1"]) as pool, Browser() as browser:
        pool.put([EVIL.encode(), b"</td><td>", b"\xff\x00\x1b[31m"], 4096)
        browser.open(pool.url)
        browser.wait("document.querySelectorAll('#nodes tr').length === 2")
        assert EVIL in browser.eval("[...document.querySelectorAll('#nodes td.name')].map(cell => cell.textContent).join()")
        browser.wait("document.querySelectorAll('#events li').length >= 4")
        click(browser, "#list")
        browser.wait("document.querySelectorAll('#answer tr').length === 3")
        browser.eval(f"document.getElementById('key').value = {json.dumps(EVIL)}; document.getElementById('look').requestSubmit()")
        browser.wait("document.querySelectorAll('#answer td').length === 4")
        assert browser.eval("document.querySelector('#answer b').textContent") == EVIL
        click(browser, "#nodes button")
        browser.wait("document.getElementById('confirm').open")
        assert browser.eval("document.title") == "Mooncake" and browser.eval("document.querySelectorAll('#nodes script, #nodes b, #answer script, #events script, main img, dialog img').length") == 0
        assert browser.problems == []


def test_what_is_looked_for():
    with Pool(8) as pool, Browser() as browser:
        pool.put([b"model/%03d" % number for number in range(200)], 1 << 16)
        pool.look_for([b"model/%03d" % number for number in range(100, 300)])
        browser.open(pool.url)
        browser.wait("document.getElementById('misses').innerText.includes('never stored')")
        assert "50.0 % of 200 keys" in text_of(browser, "found") and "100" in text_of(browser, "misses")
        assert "12.5" in text_of(browser, "cards") and "200" in text_of(browser, "cards")
        browser.eval("document.getElementById('key').value = 'model/000'; document.getElementById('look').requestSubmit()")
        browser.wait("document.getElementById('answer').innerText.includes('64.00 KB')")
        assert "memory" in text_of(browser, "answer") and "OK" in text_of(browser, "answer")
        browser.eval("document.getElementById('key').value = 'nobody'; document.getElementById('look').requestSubmit()")
        browser.wait("document.getElementById('answer').innerText.includes('never stored')")
        browser.eval("document.getElementById('key').value = 'model/'")
        click(browser, "#list")
        browser.wait("document.querySelectorAll('#answer tr').length === 50")
        click(browser, "#answer .more")
        browser.wait("document.querySelectorAll('#answer tr').length === 100")
        assert browser.problems == []


def test_what_was_evicted_and_how_old_it_was():
    with Pool(1) as pool, Browser() as browser:
        browser.open(pool.url)
        assert browser.eval("document.getElementById('evictions-part').hidden") and browser.eval("document.getElementById('promises-part').hidden")
        for number in range(128):
            pool.put([b"%d/%d" % (number, one) for one in range(8)], 1 << 16)
            if pool.master.metrics()["master_evicted_key_count"] > 0:
                break
        values = pool.master.metrics()
        gone = int(values["master_evicted_key_count"])
        assert gone == values['mooncake_evictions_total{reason="watermark"}'] == values["mooncake_eviction_age_seconds_count"] > 0
        browser.wait("!document.getElementById('evictions-part').hidden && document.querySelectorAll('#evictions tr').length === 1")
        assert browser.eval("[...document.querySelectorAll('#evictions td')].slice(0, 2).map(one => one.textContent).join()") == f"watermark,{gone}"
        assert f"Of the last {min(gone, 64)} that the sample has, the use before was" in text_of(browser, "ages-lately")
        assert browser.eval("document.querySelectorAll('#ages tr').length") == 13 and browser.eval("[...document.querySelectorAll('#ages td.number')].reduce((sum, one) => sum + Number(one.textContent), 0)") == gone
        assert "half of the last within" in text_of(browser, "cards") and browser.problems == []


def test_how_soon_keys_are_used_again_and_advice():
    with Pool(1) as pool, Browser() as browser:
        keys = [b"model/%03d" % number for number in range(100)]
        pool.put(keys, 1 << 16)
        pool.look_for(keys)
        browser.open(pool.url)
        browser.wait("document.querySelectorAll('#reuse tr').length === 13")
        rows = browser.eval("[...document.querySelectorAll('#reuse tr')].map(row => row.firstChild.textContent + '|' + row.lastChild.textContent)")
        assert rows[0] == "up to 1 s|100" and rows[-1] == "longer|0" and [row for row in rows if row.startswith("up to 120 s") or row.startswith("up to 2 min")]
        assert browser.eval("document.querySelector('#reuse .bar').getAttribute('aria-valuenow')") == "100"
        assert browser.eval("document.getElementById('advice').textContent") == "16.00 MB more: +0.0 points; 32.00 MB more: +0.0 points; 64.00 MB more: +0.0 points"
        assert browser.eval("document.querySelectorAll('#curve polyline').length") == 1 and browser.problems == []


def test_how_long_puts_take_and_bytes_that_are_got():
    with Pool(1) as pool, Browser() as browser:
        owner = pool.owners[0]
        pool.put([b"soon"], 4096)
        places = begin(owner.caller, [b"late"])
        time.sleep(.06)
        end(owner, owner.caller, places)
        browser.open(pool.url)
        rows = browser.eval("[...document.querySelectorAll('#puts tr')].map(row => row.firstChild.textContent + '|' + row.lastChild.textContent)")
        assert len(rows) == 13 and rows[0].startswith("up to 1 ms|") and rows[-1] == "longer|0" and sum(int(row.split("|")[1]) for row in rows) == 2
        assert sum(int(row.split("|")[1]) for row in rows if row.split("|")[0] in ("up to 100 ms", "up to 200 ms", "up to 500 ms")) == 1, rows
        assert "found by gets" in text_of(browser, "charts")
        browser.wait("document.getElementById('cards').innerText.includes('B/s found')")


def test_a_master_of_the_release_before():
    """It says less: that is not shown, and the rest goes on."""
    with Pool(1) as pool, OlderMaster(pool.master) as older, Browser() as browser:
        for number in range(128):
            pool.put([b"%d/%d" % (number, one) for one in range(8)], 1 << 16)
            if pool.master.metrics()["master_evicted_key_count"] > 0:
                break
        browser.open(older.url)
        settled(browser)
        assert "leader, clients connect to" in text_of(browser, "state"), text_of(browser, "state")
        assert " so far, " in text_of(browser, "cards") and browser.eval("document.querySelectorAll('#nodes tr').length") == 1
        assert browser.eval("['evictions-part', 'promises-part', 'puts-part'].every(name => document.getElementById(name).hidden)")
        assert browser.eval("document.querySelectorAll('#turns tr').length") > 0 and browser.problems == []


def test_pins_and_hints():
    with Pool(1, features=FIRM_PINS | HINTS) as pool, Browser() as browser:
        owner = pool.owners[0]
        assert owner.put([b"kept"], 4096, flags=SOFT_PIN | FIRM_PIN, pin_ms=600_000) == [0]
        assert owner.put([b"a"], 4096) == [0] and owner.hint(1, [b"a", b"nobody"]) == [0, -704]
        browser.open(pool.url)
        browser.wait("document.querySelectorAll('#promises .card').length === 2")
        shown = text_of(browser, "promises")
        assert "4.06 KB" in shown and "of 16.00 MB, 1 objects; 0 are over, 0 were refused" in shown and "hints: drop" in shown and "1 done, 1 absent" in shown
        browser.eval("document.getElementById('key').value = 'kept'; document.getElementById('look').requestSubmit()")
        browser.wait("document.getElementById('answer').innerText.includes('pinned firmly for ')")
        assert " min" in text_of(browser, "answer") and browser.problems == []


def test_disks():
    with Pool(1, features=DISKS) as pool, Browser() as browser:
        browser.open(pool.url)
        assert browser.eval("document.getElementById('disks-part').hidden")
        pool.owners[0].mount("node-0000.rack-00.example.org:12301", 1 << 30, directory="/<b>disk")
        browser.wait("!document.getElementById('disks-part').hidden")
        cards = browser.eval("[...document.querySelectorAll('#disks .card')].map(card => card.innerText.replaceAll('\\n', '|'))")
        assert len(cards) == 3 and cards[0].startswith("0 B|disks used|of 1.00 GB") and cards[1].startswith("0|objects on disks") and cards[2].startswith("1|disks|all well"), cards
        assert browser.eval("document.querySelector('#disks .bar').getAttribute('aria-label')") == "disks used: 0.0 %" and browser.problems == []


def test_tenants(tmp_path):
    (tmp_path / "quotas.yaml").write_text("version: 1\ntenants: []\n")
    with Pool(1, "--enable_multi_tenants", f"--tenant_quota_connector_uri={tmp_path / 'quotas.yaml'}") as pool, Browser() as browser:
        for tenant, most in (("blue", 1 << 20), ("red", 4 << 20)):
            assert request(pool.master.metrics_port, "PUT", "/api/v1/tenant_quotas?tenant_id=" + tenant, json.dumps({"requested_quota_bytes": most}))[0] == 200
        pool.put([b"\0blue\0%d" % number for number in range(8)], 1 << 16)
        browser.open(pool.url)
        browser.wait("document.querySelectorAll('#tenants tr').length >= 2")
        rows = browser.eval("[...document.querySelectorAll('#tenants tr')].map(row => [...row.children].map(cell => cell.textContent).join('|'))")
        assert "blue|8|512.00 KB|1.00 MB|" in rows and "red|0|0 B|4.00 MB|" in rows, rows
        assert sorted(browser.eval("[...document.querySelectorAll('#tenants .bar')].map(bar => bar.getAttribute('aria-valuenow'))"))[-1] == "50" and browser.problems == []


def test_a_drain_that_goes_on():
    """Its bar, its rate and the time that is left."""
    with Pool(2) as pool, Browser() as browser:
        pool.put([b"model/%03d" % number for number in range(200)], 1 << 16)
        segment = pool.owners[1].segment
        keys = pool.keys[segment]
        assert request(pool.master.metrics_port, "POST", "/api/v1/drain_jobs", json.dumps({"segments": [pool.names[1]]}))[0] == 200
        browser.open(pool.url)
        browser.wait(f"document.getElementById('drains').innerText.includes('running, 0 of {len(keys)} objects')")
        assert " left" not in text_of(browser, "drains")
        half = len(keys) // 2
        assert set(pool.owners[1].remove(keys[:half])) == {0}  # as good as moved: they are not there any more
        browser.wait(f"document.getElementById('drains').innerText.includes('running, {half} of {len(keys)} objects')")
        shown = text_of(browser, "drains")
        assert "/s, about " in shown and " s left" in shown, shown
        assert int(browser.eval("document.querySelector('#drains .bar').getAttribute('aria-valuenow')")) == round(100 * half / len(keys)) > 0
        assert set(pool.owners[1].remove(keys[half:])) == {0}
        browser.wait("document.getElementById('drains').innerText.includes('succeeded')")
        assert browser.eval("document.querySelector('#drains .bar').getAttribute('aria-valuenow')") == "100" and browser.problems == []


def test_drains():
    with Pool(8) as pool, Browser() as browser:
        pool.put([b"model/%03d" % number for number in range(200)], 1 << 16)
        browser.open(pool.url)
        browser.wait("document.querySelectorAll('#nodes tr').length === 8")
        browser.eval("document.getElementById('find').value = '0003'; document.getElementById('find').dispatchEvent(new Event('input'))")
        browser.wait("document.querySelectorAll('#nodes tr').length === 1")
        click(browser, "#nodes button")
        browser.wait("document.getElementById('confirm').open")
        assert "Drain " + pool.names[3] in text_of(browser, "confirm-title")
        click(browser, "#confirm-no")
        browser.wait("!document.getElementById('confirm').open")
        settled(browser)
        assert request(pool.master.metrics_port, "GET", "/api/v1/drain_jobs")[1] == b'{"success":true,"jobs":[]}', "no means no"
        click(browser, "#nodes button")
        click(browser, "#confirm-yes")
        browser.wait("document.querySelector('#nodes .tag').textContent === 'DRAINING' && document.querySelectorAll('#drains li').length === 1")
        assert "running, 0 of" in text_of(browser, "drains") and browser.eval("document.querySelector('#drains .bar').getAttribute('aria-valuenow')") == "0"
        click(browser, "#drains button")
        browser.wait("document.getElementById('confirm').open")
        assert "take objects again" in text_of(browser, "confirm-title")
        click(browser, "#confirm-yes")
        browser.wait("document.querySelector('#nodes .tag').textContent === 'OK'")
        assert browser.problems == []


def test_a_drain_wants_the_right(tmp_path):
    """Who reads is asked for another key; that is kept nowhere."""
    reader, admin = Key("reader", "read"), Key("admin", "admin")
    file = keyed.write(tmp_path, "keys", Key("node", "read,write,node"), reader, admin)
    with Master("--client_ttl=3600s", f"--auth_file={file}") as master, Browser() as browser:
        browser.call("Network.setExtraHTTPHeaders", headers={"Authorization": "Bearer " + reader.token})
        browser.open(f"http://127.0.0.1:{master.metrics_port}/")
        assert "leader" in text_of(browser, "state")
        browser.eval("confirmDrain(true, ['nobody:1'])")
        click(browser, "#confirm-yes")
        browser.wait("document.getElementById('confirm').open && !document.getElementById('confirm-key').hidden")
        assert "403" in text_of(browser, "confirm-text")
        browser.call("Network.setExtraHTTPHeaders", headers={})
        browser.eval(f"document.getElementById('bearer').value = {json.dumps(admin.token)}")
        click(browser, "#confirm-yes")
        browser.wait("document.getElementById('state').textContent.includes('404')")  # it may, and there is no such node
        assert browser.eval("JSON.stringify([localStorage, sessionStorage, document.cookie, document.getElementById('bearer').value])") == '[{},{},"",""]'


def test_keyboard():
    with Pool(60) as pool, Browser() as browser:
        browser.open(pool.url)
        browser.wait("document.querySelectorAll('#nodes tr').length === 50")
        browser.key("]")
        browser.wait("document.getElementById('place').textContent === '51 to 60 of 60'")
        browser.key("[")
        browser.wait("document.getElementById('place').textContent === '1 to 50 of 60'")
        browser.key("/")
        assert browser.eval("document.activeElement.id") == "find"
        browser.key("p")
        assert browser.eval("document.getElementById('find').value") == "p" and browser.eval("document.getElementById('pause').getAttribute('aria-pressed')") == "false", "who types, types"
        browser.eval("document.activeElement.blur()")
        browser.key("k")
        assert browser.eval("document.activeElement.id") == "key"
        browser.eval("document.activeElement.blur()")
        browser.key("t")
        assert browser.eval("document.documentElement.dataset.theme") == "dark" and browser.eval("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
        browser.key("p")
        assert browser.eval("document.getElementById('pause').textContent") == "go on"
        browser.key("?")
        assert browser.eval("document.getElementById('keys').open")
        assert browser.eval("[...document.querySelectorAll('button, input, select, a, [tabindex]')].every(one => one.tabIndex >= 0 || one.id === 'nodes-part')")
        assert browser.eval("[...document.querySelectorAll('button, input, select')].every(one => one.innerText || one.getAttribute('aria-label') || one.closest('label'))"), "each says what it is"


def test_contents_that_are_taken_in():
    """Bars of all and of each, while owners tell what they hold."""
    with Master("--client_ttl=3600s") as master, Browser() as browser, Browser(390, 844) as phone:
        url = f"http://127.0.0.1:{master.metrics_port}/"
        browser.open(url)
        assert browser.eval("document.getElementById('recovery-part').hidden")
        first, second = Returning(master.port, b"node-a.rack-07.example.org:12301", 400), Returning(master.port, EVIL.encode(), 200)
        first.tell(100)
        second.tell(50)
        for one, name in ((browser, "wide"), (phone, "phone")):
            one.open(url)
            one.wait("document.getElementById('recovery').innerText.includes('awaited')")
            assert "0 of 2 segments, 150 of at most 600 objects" in text_of(one, "recovery") and EVIL in one.eval("document.getElementById('recovery').textContent")
            bars = one.eval("[...document.querySelectorAll('#recovery .bar')].map(bar => bar.getAttribute('aria-valuenow')).join()")
            assert bars == "25,25,25" and one.eval("document.title") == "Mooncake" and one.eval("document.documentElement.scrollWidth") <= one.size[0]
            leave_picture(one, "recovery-" + name)
        second.tell(150, last=True)
        browser.wait("document.getElementById('recovery').innerText.includes('1 of 2 segments, 300 of at most 600')")
        first.tell(300, last=True)
        browser.wait("document.getElementById('recovery-part').hidden")
        assert browser.problems == [] and phone.problems == []
        first.owner.close()
        second.owner.close()


def test_slow_calls():
    """Those that were, and puts that are open; keys and names of callers are text."""
    with Pool(1) as pool, Browser() as browser, Browser(390, 844) as phone:
        owner, caller = pool.owners[0], Caller(pool.master.port, b"", EVIL[:60].encode())
        for key in (EVIL.encode(), b"model/" + b"7" * 300):
            places = begin(caller, [key])
            time.sleep(.03)
            end(owner, caller, places, -801 if key[:1] == b"m" else 0)
        begin(caller, [b"<b>open</b>"], 5 << 20)
        time.sleep(1.1)
        for one, name in ((browser, "wide"), (phone, "phone")):
            one.open(pool.url)
            one.wait("document.querySelectorAll('#slow tr').length === 3")
            shown = one.eval("[...document.querySelectorAll('#slow td')].map(cell => cell.textContent).join('|')")
            assert EVIL in shown and "<b>open</b>" in shown and "open, 5.00 MB" in shown and "TRANSFER_FAIL" in shown and "7…" in shown and EVIL[:50] in shown
            assert one.eval("document.title") == "Mooncake" and one.eval("document.querySelectorAll('#slow b, #slow script').length") == 0
            assert one.eval("document.documentElement.scrollWidth") <= one.size[0] and one.problems == []
            leave_picture(one, "slow-" + name)
        places = [begin(caller, [b"m" * 160 + end_of]) for end_of in (b"a", b"b")]  # what is shown of these is the same
        time.sleep(1.1)
        browser.wait("document.querySelectorAll('#slow tr').length === 5")
        for granted in places:
            end(owner, caller, granted)
        browser.wait("document.querySelectorAll('#slow .warn').length === 1")
        assert browser.eval("document.querySelectorAll('#slow tr').length") == 5, "no row stays that nobody is asked about"
        caller.close()


def test_masters_that_wait():
    """A standby writes its own name there: it is text, whatever it is. The standby's page has the list as well."""
    with Etcd() as etcd, Masters(etcd, 2) as masters, Browser(390, 844) as phone, Browser() as browser:
        leader = masters.leader()
        other = masters.others(leader)[0]
        short = "<script>document.title='owned'</script>"
        evil = {"name": short, "address": "<b>:1", "build": short, "since_ms": 2**63, "beat": 1}
        browser.open(f"http://127.0.0.1:{leader.metrics_port}/")
        browser.wait(f"document.getElementById('waiting').innerText.includes({json.dumps(other.address)})")
        etcd.ask("/v3/kv/put", key=f"mooncake-store/{CLUSTER}/standby/1".encode(), value=json.dumps(evil).encode())
        browser.wait("document.querySelectorAll('#waiting tr').length === 2")
        assert short in browser.eval("[...document.querySelectorAll('#waiting td')].map(cell => cell.textContent).join()") and browser.eval("document.title") == "Mooncake"
        assert "(git " in text_of(browser, "waiting") and text_of(browser, "waiting-part").count(" s\t") + text_of(browser, "waiting-part").count(" s\n") >= 2
        leave_picture(browser, "waiting-wide")
        phone.open(f"http://127.0.0.1:{other.metrics_port}/")
        phone.wait(f"document.getElementById('waiting').innerText.includes({json.dumps(other.address)})")
        assert phone.eval("document.documentElement.scrollWidth") <= 390 and phone.eval("document.getElementById('leader-part').hidden")
        leave_picture(phone, "waiting-phone")
        other.kill()
        browser.wait("document.getElementById('waiting-none').innerText.includes('None says that it waits')")
        assert browser.problems == [] and phone.problems == []


def test_a_master_that_ends_and_comes_back():
    with Pool(1) as pool, Browser() as browser:
        browser.open(pool.url)
        pool.master.kill()
        browser.wait("document.getElementById('state').className === 'bad'")
        assert "What is below is old" in text_of(browser, "state")
        pool.master.start()
        browser.wait("document.getElementById('state').className === ''")


@pytest.mark.parametrize("count", [1, 8, 1000])
def test_sizes(count):
    """Nothing is wider than the screen, a refresh has less than 100 KB, and nothing is asked of anybody else."""
    with Pool(count) as pool:
        pool.put([b"model/%03d" % number for number in range(200)], 1 << 16)
        pool.look_for([b"model/%03d" % number for number in range(100, 300)])
        if count > 3:
            pool.owners[2].owner.close()
            pool.owners.pop(2).caller.close()
            request(pool.master.metrics_port, "POST", "/api/v1/drain_jobs", json.dumps({"segments": [pool.names[3]]}))
        for name, (width, height) in SIZES.items():
            with Browser(width, height, dark=name == "tablet") as browser:
                browser.open(pool.url)
                browser.wait(f"document.querySelectorAll('#nodes tr').length === {min(count, 50)}")
                assert browser.eval("document.documentElement.scrollWidth") <= width, "it scrolls sideways"
                first = sum(browser.received.values())
                settled(browser)
                before, turns = sum(browser.received.values()), browser.eval("Number(document.body.dataset.turns)")
                browser.wait(f"Number(document.body.dataset.turns) >= {turns} + 2")
                each = (sum(browser.received.values()) - before) / 2
                assert first < 200_000 and each < 100_000, (browser.received, each)
                assert all(url.startswith(pool.url) or url.startswith("data:") for url in browser.requested) and browser.problems == []
                if count > 3:
                    assert browser.eval("[...document.querySelectorAll('#nodes .tag')].slice(0, 2).map(one => one.textContent).sort().join()") in ("DRAINING,SUSPECT", "DRAINED,SUSPECT")
                    assert "suspect" in text_of(browser, "troubles")
                leave_picture(browser, f"{name}-{count}")
                print(f"{count} nodes, {name}: {first} bytes at first, {each:.0f} a refresh")
