"""How long a browser takes to the first paint of a master's page: paint.py ROUNDS LATENCY_MS NODES MASTER...

Of each round and each program one fresh chromium opens the page, and once more; the programs take turns, so that what else the machine does is in all of
them. LATENCY_MS: of a network that the browser pretends, of 4 Mbit/s; 0: as it is. NODES: so many have joined each master. Prints min, median and max of the
first paint in ms, and of what leads to it, of the first page of a browser and of the second.
"""
import pathlib
import resource
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "system"))

from browser import Browser  # noqa: E402
from cluster import Master  # noqa: E402
from wire import FakeOwner  # noqa: E402

TIMES = """(() => {
  const page = performance.getEntriesByType("navigation")[0], paint = performance.getEntriesByType("paint");
  const of = name => (paint.find(one => one.name === name) || {startTime: 0}).startTime, last = performance.getEntriesByType("resource").filter(one => /css$/.test(one.name));
  const shown = window.firstShown || 0;
  return {asked: page.requestStart, page: page.responseEnd, style: Math.max(0, ...last.map(one => one.responseEnd)), parsed: page.domInteractive, "first paint": of("first-paint"), "with content": of("first-contentful-paint"), "numbers are shown": shown};
})()"""


SEE_NUMBERS = """new MutationObserver((_, self) => {
  if (document.body && document.body.dataset.turns) { window.firstShown = performance.now(); self.disconnect(); }
}).observe(document, {subtree: true, childList: true, attributes: true});"""


def join(master, nodes):
    return [FakeOwner(master.port, f"node-{number:04}.rack-{number // 40:02}.example.org:12301", capacity=64 << 20, slots=4096) for number in range(nodes)]


def look(browser, url):
    browser.open(url)
    browser.wait("performance.getEntriesByType('paint').length === 2")
    return browser.eval(TIMES)


def main():
    rounds, latency, nodes, programs = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    times = {(program, which): [] for program in programs for which in ("first", "second")}
    masters = []
    for program in programs:
        masters.append(Master("--client_ttl=3600s", program=program).start())
    owners = [owner for master in masters for owner in join(master, nodes)]
    for _ in range(rounds):
        for program, master in zip(programs, masters):
            with Browser() as browser:
                if latency:
                    browser.call("Network.emulateNetworkConditions", offline=False, latency=latency, downloadThroughput=500_000, uploadThroughput=500_000)
                browser.call("Page.addScriptToEvaluateOnNewDocument", source=SEE_NUMBERS)
                for which in ("first", "second"):
                    times[program, which].append(look(browser, f"http://127.0.0.1:{master.metrics_port}/"))
    for owner in owners:
        owner.close()
    for master in masters:
        master.stop()
    for (program, which), told in times.items():
        print(f"{program}, {nodes} nodes: the {which} page of {len(told)} browsers, ms, min/median/max")
        for name in told[0]:
            values = [one[name] for one in told]
            print(f"  {name:17} {min(values):5.0f} {statistics.median(values):5.0f} {max(values):5.0f}")


main()
