"use strict";
// Search over window.searchIndex: [address, page, heading, words] of each heading. A section is found when it has all words that were typed, anywhere; a
// word in the heading counts most, then one in the page's name. #search=WORDS behind a page's address shows what they find.
(() => {
    const query = document.getElementById("query"), found = document.getElementById("found"), article = document.querySelector("article");
    const root = document.body.dataset.root, most = 30;
    const count = (text, word) => text.split(word).length - 1;
    const rows = window.searchIndex.map(([address, page, heading, words]) => ({address, page, heading, words, small: [heading, page, words].map((one) => one.toLowerCase())}));

    function score(row, words) {
        let sum = 0;
        for (const word of words) {
            const [heading, page, text] = row.small.map((one) => count(one, word));
            if (heading + page + text === 0)
                return 0;
            sum += 20 * heading + 8 * page + Math.min(text, 5);
        }
        return sum;
    }

    function marked(text, words) {
        const line = document.createElement("small"), small = text.toLowerCase();
        const at = Math.max(0, Math.min(...words.map((word) => small.indexOf(word)).filter((one) => one >= 0), text.length) - 60);
        const part = text.slice(at, at + 220), pattern = new RegExp(words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|"), "gi");
        let last = 0;
        for (const match of part.matchAll(pattern)) {
            line.append(part.slice(last, match.index));
            const mark = document.createElement("mark");
            mark.textContent = match[0];
            line.append(mark);
            last = match.index + match[0].length;
        }
        line.append(part.slice(last));
        return line;
    }

    function search() {
        const words = query.value.toLowerCase().split(/\s+/).filter((word) => word !== "");
        found.hidden = words.length === 0;
        article.hidden = !found.hidden;
        found.replaceChildren();
        if (found.hidden)
            return;
        const best = rows.map((row) => [score(row, words), row]).filter(([sum]) => sum > 0).sort((a, b) => b[0] - a[0]).slice(0, most);
        for (const [, row] of best) {
            const item = document.createElement("li"), link = document.createElement("a");
            link.href = `${root}/${row.address}`;
            link.textContent = row.heading === row.page ? row.page : `${row.page}: ${row.heading}`;
            link.addEventListener("click", () => { query.value = ""; search(); });
            item.append(link, marked(row.words, words));
            found.append(item);
        }
        if (best.length === 0)
            found.append(Object.assign(document.createElement("li"), {textContent: "Nothing found."}));
    }

    query.addEventListener("input", search);
    query.form.addEventListener("submit", (event) => event.preventDefault());
    document.addEventListener("keydown", (event) => {
        if (event.key === "/" && document.activeElement !== query) {
            event.preventDefault();
            query.focus();
        } else if (event.key === "Escape") {
            query.value = "";
            search();
        }
    });
    if (location.hash.startsWith("#search=")) {
        query.value = decodeURIComponent(location.hash.slice(8));
        search();
    }
})();
