// The news for all pages of a browser: a shared worker with one stream. A browser opens six connections to a host, so
// with a stream of each page the seventh would wait. Where there are no shared workers, each page runs this by itself.
(() => {
  "use strict";
  const ADDRESS = "/console/live";
  const KEPT = 500; // changes for pages that join later
  const SILENT_MS = 40_000; // the host says something every 15 s
  const WAIT_MS = [500, 1000, 2000, 3000];
  const pages = new Set();
  let kept = [];
  let first = ""; // from this event on `kept` is whole
  let last = "";
  let state = "";
  let tries = 0;
  let connection = null;
  let timer = 0;

  const parsed = (id) => {
    const at = id.lastIndexOf("-");
    return { start: id.slice(0, at), number: Number(id.slice(at + 1)) };
  };
  const isBefore = (id, other) => {
    const [one, two] = [parsed(id), parsed(other)];
    return one.start === two.start && one.number < two.number;
  };
  const setState = (now) => {
    state = now;
    for (const page of pages) page.send({ state });
  };
  // The page has what happened before it was made.
  const tell = (page, news) => { if (news.all || !isBefore(news.id, page.since)) page.send(news); };

  const take = ({ event, id, data }) => {
    if (event === "live") {
      tries = 0;
      last = id;
      return setState("live");
    }
    if (event === "live-over") return setState("over");
    const news = { id, all: event === "all", changes: data ? JSON.parse(data) : [] };
    last = id;
    if (news.all) [kept, first] = [[], id];
    else if (kept.push(news) > KEPT) first = kept.shift().id;
    for (const page of pages) tell(page, news);
  };

  // Whole events of a stream as they come; what is left of one that was cut off is dropped.
  const read = async (body, isAlive) => {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      isAlive();
      const whole = (text + value).split("\n\n");
      text = whole.pop();
      for (const lines of whole) {
        const fields = lines.split("\n").map((line) => [line.split(":", 1)[0], line.slice(line.indexOf(":") + 2)]);
        const found = Object.fromEntries(fields);
        if (found.event) take(found);
      }
    }
  };

  const connect = async () => {
    clearTimeout(timer);
    const mine = (connection = new AbortController());
    let silence = 0;
    const isAlive = () => {
      clearTimeout(silence);
      silence = setTimeout(() => mine.abort(), SILENT_MS);
    };
    isAlive();
    try {
      const answer = await fetch(`${ADDRESS}?since=${encodeURIComponent(last)}`, { signal: mine.signal, cache: "no-store" });
      if (answer.ok) await read(answer.body, isAlive);
      else setState(answer.status === 401 ? "over" : "away");
      if (answer.ok && state === "live") setState("away");
    } catch {
      if (connection === mine) setState("away");
    }
    clearTimeout(silence);
    if (connection !== mine) return;
    connection = null;
    timer = setTimeout(keepUp, WAIT_MS[Math.min(tries++, WAIT_MS.length - 1)]);
  };
  const isWanted = () => [...pages].some((page) => page.isVisible);
  // Connected as long as somebody looks at a page.
  const keepUp = () => {
    if (isWanted() && !connection) connect();
    else if (!isWanted()) {
      clearTimeout(timer);
      const ended = connection;
      connection = null;
      ended?.abort();
    }
  };

  const catchUp = (page) => {
    first ||= last ||= page.since;
    const isKnown = parsed(first).start === parsed(page.since).start && !isBefore(page.since, first);
    if (!isKnown) return page.send({ id: last, all: true, changes: [] });
    for (const news of kept) if (isBefore(page.since, news.id)) page.send(news);
  };
  const join = (send) => {
    const page = { send, since: "", isVisible: false };
    return (said) => {
      if (said.isGone) pages.delete(page);
      else {
        Object.assign(page, said);
        if (said.since !== undefined) {
          pages.add(page);
          catchUp(page);
          // Who has just signed in need not wait for the next try.
          if (state === "live") send({ state });
          else if (!connection) clearTimeout(timer);
        }
      }
      keepUp();
    };
  };

  if (self.SharedWorkerGlobalScope) {
    self.onconnect = ({ ports: [port] }) => {
      const receive = join((news) => port.postMessage(news));
      port.onmessage = ({ data }) => receive(data);
    };
  } else self.joinNews = join;
})();
