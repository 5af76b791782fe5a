// What a keyboard and a screen reader need beyond unfold's scripts.

const FOCUSABLE = "a[href], button, input, select, textarea, summary, [tabindex]";
const openers = new Map();

function focusables(box) {
  return [...box.querySelectorAll(FOCUSABLE)].filter(
    (each) => each.tabIndex >= 0 && !each.disabled && each.getClientRects().length
  );
}

// Moves the focus into a dialog that opens, and back to where it was when the dialog closes.
function moveFocus(box, isOpen) {
  if (isOpen) {
    openers.set(box, document.activeElement);
    focusWhenShown(box);
  } else {
    focusAgain(openers.get(box));
    openers.delete(box);
  }
}

// A part of the page that was read again has another element in the place of the opener.
function focusAgain(opener) {
  const dialog = opener?.getAttribute("hx-get");
  const present =
    !dialog || opener.isConnected ? opener : document.querySelector(`[hx-get="${CSS.escape(dialog)}"]`);
  present?.focus();
}

// Alpine shows a box in one of the next frames; what is not shown yet takes no focus.
function focusWhenShown(box) {
  if (!openers.has(box)) return;
  if (!box.getClientRects().length) {
    requestAnimationFrame(() => focusWhenShown(box));
    return;
  }
  const field = box.querySelector("input:not([type=hidden]), select, textarea");
  (field && field.getClientRects().length ? field : box).focus();
}

// Keeps Tab inside a dialog.
function keepFocus(event) {
  const all = focusables(event.currentTarget);
  const edge = event.shiftKey ? all[0] : all.at(-1);
  const present = document.activeElement;
  if (present === edge || (event.shiftKey && present === event.currentTarget)) {
    event.preventDefault();
    (event.shiftKey ? all.at(-1) : all[0])?.focus();
  }
}

// The letters of an icon's font are no text, unless nothing else names what holds the icon.
function hideIcons(root) {
  root.querySelectorAll(".material-symbols-outlined:not([aria-hidden])").forEach((icon) => {
    icon.setAttribute("aria-hidden", "true");
    const control = icon.closest("a, button");
    if (control && !control.hasAttribute("aria-label") && control.title) {
      control.setAttribute("aria-label", control.title);
    }
  });
}

// unfold labels the first cell of each row as a checkbox, also in lists that have none.
function labelFirstCells() {
  // Icons for sorting stand beside the text.
  const first = document.querySelector("#result_list th:not(.action-checkbox-column) .text");
  document.querySelectorAll("#result_list tbody tr > :first-child").forEach((cell) => {
    if (cell.dataset.label && !cell.querySelector("input[type=checkbox]")) {
      cell.dataset.label = first.textContent.trim();
    }
  });
}

// Amounts stand below each other, in every table that has a column of them.
function alignAmounts() {
  document.querySelectorAll("#result_list, .cw-table").forEach((table) => {
    const columns = [];
    table.querySelectorAll("tbody tr").forEach((row) => {
      [...row.cells].forEach((cell, place) => (columns[place] ??= []).push(cell));
    });
    columns.forEach((cells, place) => {
      const texts = cells.map((cell) => cell.innerText.trim()).filter((text) => !/^-?$/.test(text));
      if (texts.length && texts.every((text) => /^-?\$[\d,.]+[GM]?$/.test(text))) {
        [table.tHead?.rows[0]?.cells[place], ...cells].forEach((cell) => {
          cell?.classList.add("cw-amount");
        });
      }
    });
  });
}

// On a phone, a cell begins with the name of its column, which is written as in the table's head.
function nameCells() {
  document.querySelectorAll("[data-label]").forEach((cell) => {
    cell.dataset.label = cell.dataset.label.replace(/^./, (first) => first.toUpperCase());
  });
}

// Tabs that scroll sideways begin with the present one in sight.
function showPresentTab() {
  document.querySelectorAll(".cw-tabs").forEach((tabs) => {
    const present = tabs.querySelector("[aria-current]")?.getBoundingClientRect();
    const place = tabs.getBoundingClientRect();
    if (present && present.right > place.right) tabs.scrollLeft += present.right - place.right + 24;
  });
}

// select2 and Django's two lists draw controls without names.
function nameControls() {
  document.querySelectorAll(".select2-selection[aria-labelledby]").forEach((drawn) => {
    const list = drawn.closest(".select2-container").previousElementSibling;
    const name = list?.labels?.[0]?.innerText ?? list?.getAttribute("aria-label") ?? "Choose";
    const value = drawn.querySelector(".select2-selection__rendered");
    drawn.setAttribute("aria-label", `${name.replace("*", "")} ${value?.innerText ?? ""}`.trim());
    // It would hide the label.
    drawn.removeAttribute("aria-labelledby");
    value?.removeAttribute("role");
    value?.removeAttribute("aria-readonly");
  });
  document.querySelectorAll(".help-tooltip[aria-label]").forEach((icon) => {
    icon.setAttribute("role", "img");
  });
}

// A list that select2 replaces is out of sight, so its link leads to the replacement.
function focusField(id) {
  const field = document.getElementById(id);
  const shown = field?.nextElementSibling?.querySelector(".select2-selection") ?? field;
  shown?.focus();
}

document.addEventListener("DOMContentLoaded", () => {
  hideIcons(document);
  alignAmounts();
  labelFirstCells();
  nameCells();
  showPresentTab();
});

window.addEventListener("resize", showPresentTab);

// Other scripts draw their controls when the page has loaded, and Django's puts the cursor into the
// first field of a new row at any time before.
window.addEventListener("load", () => {
  setTimeout(nameControls);
  document.querySelector(".cw-errors")?.focus();
});

document.addEventListener("focusin", (event) => {
  if (event.target.matches?.(".select2-search__field:not([aria-label])")) {
    event.target.setAttribute("aria-label", "Search");
  }
});

document.addEventListener("click", (event) => {
  const link = event.target.closest?.(".cw-errors a[href^='#']");
  if (link) {
    event.preventDefault();
    focusField(link.hash.slice(1));
  }
});

document.addEventListener("htmx:afterSwap", (event) => {
  hideIcons(document);
  setTimeout(nameControls);
  document.querySelector("#dialog-form [aria-invalid=true]")?.focus();
});
