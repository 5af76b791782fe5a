"use strict";

// Names the box in which a picker searches: select2 leaves it without a name.
function nameBoxes(root) {
  for (const select of root.querySelectorAll("select.admin-autocomplete[multiple]")) {
    const box = select.parentElement.querySelector(".select2-search__field");
    const label = document.querySelector(`label[for="${select.id}"]`);
    if (box && label) box.setAttribute("aria-label", label.textContent.trim());
  }
}

window.addEventListener("load", () => nameBoxes(document));

// Opens the pickers of a dialog, which arrives after the page.
document.addEventListener("htmx:load", (event) => {
  const jQuery = window.django && window.django.jQuery;
  if (!jQuery) return;
  for (const element of event.target.querySelectorAll("select.admin-autocomplete")) {
    if (element.classList.contains("select2-hidden-accessible")) continue;
    const parent = element.closest("#dialog") || element.parentElement;
    jQuery(element).select2({ dropdownParent: jQuery(parent) });
  }
  nameBoxes(event.target);
});

// Adds an empty row to the patterns: a copy of the last one.
function addRow(editor) {
  const total = editor.querySelector("input[type=hidden]");
  const number = Number(total.value);
  const rows = editor.querySelectorAll("tbody tr");
  const row = rows[rows.length - 1].cloneNode(true);
  for (const alert of row.querySelectorAll(".cw-alert")) alert.remove();
  for (const field of row.querySelectorAll("input, select")) {
    field.name = field.name.replace(/-\d+-/, `-${number}-`);
    field.setAttribute("aria-label", (field.getAttribute("aria-label") || "").replace(/\d+$/, number + 1));
    if (field.type === "checkbox") field.checked = false;
    else if (field.tagName === "INPUT") field.value = "";
    else field.selectedIndex = 0;
  }
  rows[rows.length - 1].after(row);
  total.value = number + 1;
  row.querySelector("input").focus();
}

// Sends the form of a button to another address, and shows the answer beside it.
async function send(button) {
  const place = document.getElementById(button.dataset.into);
  const body = new FormData(button.form || button.closest("form"));
  for (const name of (button.dataset.with || "").split(" ").filter(Boolean)) {
    body.set(name, document.querySelector(`[name="${name}"]`).value);
  }
  button.disabled = true;
  place.textContent = "One moment…";
  try {
    const answer = await fetch(button.dataset.send, { method: "POST", body, redirect: "error" });
    const text = await answer.text();
    if (answer.ok) place.innerHTML = text;
    else place.textContent = `This did not work (${answer.status}). Load the page again.`;
  } catch {
    place.textContent = "The console did not answer. Try again.";
  }
  button.disabled = false;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-send], [data-add-row]");
  if (!button) return;
  event.preventDefault();
  if (button.dataset.send) send(button);
  else addRow(button.closest("[data-rows]"));
});
