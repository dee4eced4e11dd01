// What the console does in the browser besides htmx: it says when Andy is away, and keeps a chat at its end.
(() => {
  "use strict";
  const banner = (name) => {
    for (const one of document.querySelectorAll("[data-banner]")) one.hidden = one.dataset.banner !== name;
    document.documentElement.dataset.live = name ? "no" : "yes";
  };

  // What happened, as `live.js` hears it for all pages of the browser: parts that it concerns are made anew. A page in
  // the background waits with that until it is looked at.
  const listen = (live) => {
    const { parts, everywhere } = JSON.parse(live.dataset.parts);
    const query = new URLSearchParams(live.dataset.query);
    const group = query.get("group");
    const isOf = (kind, wanted) => (wanted.endsWith("*") ? kind.startsWith(wanted.slice(0, -1)) : kind === wanted);
    const touched = (changes, all, table) => Object.keys(table).filter(
      (name) => all || changes.some(([kind]) => table[name].some((wanted) => isOf(kind, wanted)))
    );
    const waiting = new Set();
    const flush = () => {
      if (document.hidden) return;
      for (const name of waiting) htmx.trigger(document.body, `live-${name}`);
      waiting.clear();
    };
    let since = query.get("since");
    const take = ({ state, id, all, changes }) => {
      if (state) return banner(state === "live" ? "" : state);
      since = id;
      const own = changes.filter(([, of]) => !group || of === null || of === group);
      for (const name of [...touched(own, all, parts), ...touched(changes, all, everywhere)]) waiting.add(name);
      flush();
    };
    let say = null;
    const join = () => say({ since, isVisible: !document.hidden });
    const alone = () => { say = joinNews(take); join(); };
    try {
      const worker = new SharedWorker(live.dataset.worker, { name: "andy-news" });
      worker.onerror = alone;
      worker.port.onmessage = ({ data }) => take(data);
      say = (said) => worker.port.postMessage(said);
      join();
    } catch { alone(); }
    document.addEventListener("visibilitychange", () => { say({ isVisible: !document.hidden }); flush(); });
    window.addEventListener("pagehide", () => say({ isGone: true }));
    window.addEventListener("pageshow", ({ persisted }) => { if (persisted) join(); });
  };
  document.addEventListener("htmx:error", (event) => {
    const id = event.target?.id ?? "";
    if (id.startsWith("part-")) {
      // The news that had it fetched does not come again: without another try it would stay as it was.
      setTimeout(() => htmx.trigger(document.body, id.replace("part-", "live-")), 2000);
    }
  });
  document.addEventListener("htmx:response:error", (event) => {
    if (event.detail?.ctx?.response?.status === 401) banner("over");
  });

  // Sent to nobody, a form would end in an error page of the browser's, and what was typed would be lost. The stream
  // of news may be refused alone, so a form is sent when anything answers.
  let isAnswered = false;
  document.addEventListener("submit", async (event) => {
    if (isAnswered || document.documentElement.dataset.live !== "no") return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const { target, submitter } = event;
    try {
      await fetch(location.href, { method: "HEAD" });
    } catch {
      document.querySelector("[data-banner]:not([hidden])")?.scrollIntoView({ block: "center" });
      return;
    }
    isAnswered = true;
    target.requestSubmit(submitter);
    isAnswered = false;
  }, true);

  // What a person opened, `<details>` with an id, stays open when its part is made anew.
  htmx.registerExtension("keep-open", {
    htmx_before_morph_attr: (element, detail) =>
      !(detail.attrName === "open" && element.localName === "details" && element.id),
  });

  // A list that grows at its end stays there, unless somebody reads further up.
  const followed = (scope) => scope.querySelectorAll("[data-follow]");
  const isAtEnd = (element) => element.scrollHeight - element.scrollTop - element.clientHeight < 80;
  const ends = new WeakMap();
  const toEnd = (scope) => {
    for (const element of followed(scope)) {
      if (ends.get(element) ?? true) element.scrollTop = element.scrollHeight;
    }
  };
  document.addEventListener("scroll", (event) => {
    if (event.target.dataset?.follow !== undefined) ends.set(event.target, isAtEnd(event.target));
  }, true);
  // The same for a page that is one long conversation, marked `data-follow-page`.
  const root = document.scrollingElement;
  let wasAtEnd = true;
  const pageToEnd = () => {
    if (wasAtEnd && !location.hash.startsWith("#m") && document.querySelector("[data-follow-page]")) {
      root.scrollTop = root.scrollHeight;
    }
  };
  window.addEventListener("scroll", () => {
    wasAtEnd = root.scrollHeight - root.scrollTop - root.clientHeight < 120;
  }, { passive: true });
  // The tab's title says how many things wait, as the navigation does.
  const countInTitle = () => {
    const waiting = Number(document.getElementById("part-needs")?.dataset.needs ?? 0);
    document.title = (waiting ? `(${waiting}) ` : "") + document.title.replace(/^\(\d+\) /, "");
  };
  document.addEventListener("htmx:after:swap", () => {
    countInTitle();
    toEnd(document);
    pageToEnd();
  });

  document.addEventListener("keydown", (event) => {
    // As messengers do: Enter sends, with Shift it is a new line.
    const box = event.target.closest?.("textarea[data-enter]");
    if (!box || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (box.value.trim()) box.form.requestSubmit();
  });

  // What a pointer chooses in a filter is shown at once. Keys change a select at each step, so that they need "Show".
  let isPointed = false;
  document.addEventListener("pointerdown", () => { isPointed = true; }, true);
  document.addEventListener("keydown", () => { isPointed = false; }, true);
  document.addEventListener("change", ({ target }) => {
    if (isPointed && target.dataset?.submit !== undefined) target.form.requestSubmit();
    const output = target.type === "file" && target.closest(".chooser")?.querySelector("output");
    if (output) output.textContent = [...target.files].map((one) => one.name).join(", ");
  });
  document.documentElement.dataset.scripts = "yes";

  // Preferences load the page anew: what was typed into its forms until then is put back.
  const unsaved = `unsaved:${location.pathname}`;
  const fields = () => [...document.querySelectorAll("main form :is(input, textarea, select)")].filter(
    (one) => one.name && !["hidden", "file", "password"].includes(one.type)
  );
  const isTicked = (one) => one.type === "checkbox" || one.type === "radio";
  const stateOf = (one) => (isTicked(one) ? one.checked : one.value);
  document.addEventListener("submit", ({ target }) => {
    if (!target.closest("#preferences")) return;
    const typed = fields().map((one) => [new URL(one.form.action).pathname, one.name, stateOf(one)]);
    sessionStorage.setItem(unsaved, JSON.stringify(typed));
  });
  const restoreUnsaved = () => {
    const typed = JSON.parse(sessionStorage.getItem(unsaved) ?? "[]");
    sessionStorage.removeItem(unsaved);
    fields().forEach((one, place) => {
      const [action, name, state] = typed[place] ?? [];
      if (name !== one.name || action !== new URL(one.form.action).pathname || stateOf(one) === state) return;
      if (isTicked(one)) one.checked = state;
      else one.value = state;
      for (let up = one.closest("details"); up; up = up.parentElement.closest("details")) up.open = true;
    });
  };

  // A box keeps what was typed in this tab until it is taken: over a reload, a sign-in and a restart of Andy.
  const boxes = () => document.querySelectorAll("textarea[data-draft]");
  const keyOf = (box, kind) => `${kind}:${box.form.action}`;
  const restoreDrafts = () => {
    if (document.querySelector("input[data-code]")) {
      // Sent, but met by the sign-in: nothing was done, so that it is a draft again.
      for (const key of Object.keys(sessionStorage)) if (key.startsWith("sent:")) sessionStorage.removeItem(key);
      return;
    }
    for (const box of boxes()) {
      const [draft, sent] = [keyOf(box, "draft"), keyOf(box, "sent")];
      if (sessionStorage.getItem(sent) !== null && !box.value) sessionStorage.removeItem(draft);
      sessionStorage.removeItem(sent);
      if (!box.value) box.value = sessionStorage.getItem(draft) ?? "";
    }
  };
  document.addEventListener("input", ({ target }) => {
    if (target.dataset?.draft !== undefined) sessionStorage.setItem(keyOf(target, "draft"), target.value);
  });
  // Who writes, and as whom, stays for the next message.
  const keptKey = (one) => `keep:${one.form.action}:${one.name}`;
  const restoreKept = () => {
    for (const one of document.querySelectorAll("[data-keep]")) one.value = sessionStorage.getItem(keptKey(one)) ?? one.value;
  };
  document.addEventListener("change", ({ target }) => {
    if (target.dataset?.keep !== undefined) sessionStorage.setItem(keptKey(target), target.value);
  });
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented) return;
    for (const box of event.target.querySelectorAll("textarea[data-draft]")) {
      sessionStorage.setItem(keyOf(box, "sent"), "yes");
    }
  });

  // Back and reload lead to the place that one has left; browsers restore it before the page has its height.
  const place = `place:${location.pathname}${location.search}`;
  const isReturn = ["back_forward", "reload"].includes(performance.getEntriesByType("navigation")[0]?.type);
  const followsPage = () => document.querySelector("[data-follow-page]") !== null;
  window.addEventListener("pagehide", () => {
    if (followsPage()) sessionStorage.setItem(place, wasAtEnd ? "end" : String(root.scrollTop));
  });
  const returnToPlace = () => {
    const top = isReturn && followsPage() ? sessionStorage.getItem(place) : null;
    if (top === null || top === "end") return false;
    root.scrollTop = Number(top);
    wasAtEnd = false;
    return true;
  };

  const start = () => {
    const live = document.getElementById("live");
    if (live) listen(live);
    restoreDrafts();
    restoreKept();
    restoreUnsaved();
    toEnd(document);
    if (!returnToPlace()) pageToEnd();
    // A one-time code comes after '#', which no server and no log sees; it is taken out of the address at once.
    const field = document.querySelector("input[data-code]");
    const code = location.hash.slice(1);
    if (field && code) {
      history.replaceState(null, "", location.pathname + location.search);
      field.value = code;
      field.form.requestSubmit();
    }
  };
  // Browsers pass over `autofocus` where the address has a part after '#', as it has once a message was sent, and
  // let go of the focus when they have scrolled there.
  window.addEventListener("load", () => requestAnimationFrame(() => {
    if (document.activeElement !== document.body) return;
    const fields = matchMedia("(pointer: fine)").matches ? "[autofocus], [data-focus]" : "[autofocus]";
    document.querySelector(fields)?.focus({ preventScroll: true });
  }));
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
