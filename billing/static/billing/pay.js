"use strict";

const POLL_MS = 5000;
const byId = (id) => document.getElementById(id);
const countdown = byId("countdown");
let endsAt = performance.now() + Number(countdown.dataset.seconds) * 1000;

function tick() {
  const seconds = Math.max(0, Math.ceil((endsAt - performance.now()) / 1000));
  const parts = [Math.floor(seconds / 60) % 60, seconds % 60];
  if (seconds >= 3600) parts.unshift(Math.floor(seconds / 3600));
  byId("left").textContent = parts.map((part) => String(part).padStart(2, "0")).join(":");
}

function show(state) {
  document.body.dataset.status = state.status;
  if (byId("said").textContent !== state.said) byId("said").textContent = state.said;
  byId("count").textContent = state.confirmations;
  byId("confirmations").hidden = !state.confirmations;
  endsAt = performance.now() + state.seconds_left * 1000;
  tick();
}

async function poll() {
  let isFinal = false;
  try {
    const answer = await fetch(`${location.pathname}/status`, { cache: "no-store" });
    if (answer.ok) {
      const state = await answer.json();
      show(state);
      isFinal = state.is_final;
    }
  } catch {
    // The network is away for a moment; the next poll asks again.
  }
  if (!isFinal) setTimeout(poll, POLL_MS);
}

countdown.hidden = false;
tick();
setInterval(tick, 1000);
if (document.body.dataset.status !== "confirmed") setTimeout(poll, POLL_MS);
