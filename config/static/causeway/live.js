/* Keeps a page up to date: a table that takes new rows, and a part that is read again as a whole.

A request of this script does not put off the end of an idle session (Causeway-Background). Nothing
is asked while the page is hidden or paused. */
"use strict";

(() => {
  const EVERY = 2000;
  const LONGEST = 30000;
  const MOST_ROWS = 200;
  const headers = { "Causeway-Background": "1" };

  const ask = (url, more) =>
    fetch(url, { headers: { ...headers, ...more }, cache: "no-store", credentials: "same-origin", redirect: "manual" });

  const keep = (run, every) => {
    let wait = every;
    let timer = 0;
    const turn = async () => {
      clearTimeout(timer);
      timer = 0;
      if (document.hidden) return;
      wait = Math.min((await run()) ?? Math.max(wait * 2, every), LONGEST);
      if (timer === 0) timer = setTimeout(turn, wait);
    };
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && timer === 0) turn();
    });
    return turn;
  };

  const startTail = (live) => {
    const body = live.querySelector("tbody");
    const state = live.querySelector("[data-status]");
    const button = live.querySelector("[data-pause]");
    const gap = live.querySelector("template[data-gap]");
    let isPaused = false;
    let isAsking = false;
    let cursor = "";
    let tag = "";

    const say = (text) => {
      if (state.textContent !== text) state.textContent = text;
    };

    // An answer that comes after the pause leaves what the button has said.
    const report = (text) => {
      if (!isPaused) say(text);
    };

    const find = (id) => body.querySelector(`tr[data-id="${CSS.escape(id)}"]`);

    const show = (answer) => {
      const part = document.createElement("template");
      part.innerHTML = answer.rows;
      let isJoined = false;
      const fresh = [];
      for (const row of [...part.content.children]) {
        const known = find(row.dataset.id);
        if (known === null) {
          fresh.push(row);
        } else {
          isJoined = true;
          if (known.outerHTML !== row.outerHTML) known.replaceWith(row);
        }
      }
      const first = body.querySelector("tr[data-id]");
      if (first !== null && (answer.has_gap || (answer.is_cut && !isJoined))) {
        if (!body.firstElementChild.classList.contains("cw-gap")) body.prepend(gap.content.cloneNode(true));
      }
      for (const row of fresh.reverse()) body.prepend(row);
      if (body.querySelector("tr[data-id]") !== null) body.querySelector("[data-empty]")?.remove();
      while (body.children.length > MOST_ROWS) body.lastElementChild.remove();
    };

    const poll = async () => {
      if (isPaused || isAsking) return EVERY;
      isAsking = true;
      try {
        const running = [...body.querySelectorAll("tr[data-running]")].slice(0, 100).map((row) => row.dataset.id);
        const url = new URL(live.dataset.url, location.href);
        if (cursor) url.searchParams.set("after", cursor);
        if (running.length) url.searchParams.set("running", running.join(","));
        const response = await ask(url, tag ? { "If-None-Match": tag } : {});
        if (response.type === "opaqueredirect" || response.status === 403) {
          report("You are signed out. Open the page again to sign in.");
          return LONGEST;
        }
        if (response.status === 429 || response.status === 400) {
          report((await response.json()).notice);
          return null;
        }
        if (response.status !== 200 && response.status !== 304) throw new Error(`${response.status}`);
        tag = response.headers.get("ETag") ?? "";
        cursor = response.headers.get("Causeway-Cursor") ?? cursor;
        let notice = "";
        if (response.status === 200) {
          const answer = await response.json();
          show(answer);
          notice = answer.notice;
        }
        report(notice || "Live: new requests appear at the top.");
        return notice ? null : EVERY;
      } catch {
        report("The gateway does not answer. The page asks again.");
        return null;
      } finally {
        isAsking = false;
      }
    };

    const turn = keep(poll, EVERY);
    button.addEventListener("click", () => {
      isPaused = !isPaused;
      button.setAttribute("aria-pressed", String(isPaused));
      button.textContent = isPaused ? "Resume" : "Pause";
      say(isPaused ? "Paused: nothing is asked." : "Live: new requests appear at the top.");
      if (!isPaused) turn();
    });
    turn();
  };

  const startRefresh = (part) => {
    const every = Number(part.dataset.refresh) * 1000;
    const refresh = async () => {
      try {
        const response = await ask(location.href);
        if (response.status === 200) {
          const page = new DOMParser().parseFromString(await response.text(), "text/html");
          const found = page.getElementById(part.id);
          // Whoever is in a table with the keyboard keeps the place.
          if (found !== null && !part.contains(document.activeElement)) {
            part.replaceChildren(...found.childNodes);
            window.htmx?.process(part);
          }
          return every;
        }
      } catch {
        return null;
      }
      return null;
    };
    setTimeout(keep(refresh, every), every);
  };

  const live = document.getElementById("live");
  if (live !== null) startTail(live);
  for (const part of document.querySelectorAll("[data-refresh]")) startRefresh(part);
})();
