// Share, the list of keys, and the palette. Dialogs are the browser's own: they hold the focus, and
// Escape closes them. Strings from Python become text, never markup.

const MOST_SHOWN = 12;
const SAID_MS = 2500;
const KINDS = [
  ["pages", "page"], ["criteria", "criterion"], ["pins", "pinned plan"], ["plans", "plan"],
];
const EXPERT = /^(?:layer\s*|expert\s*)?(\d{1,6})(?:\s*[.,:]\s*|\s+(?:expert\s*)?)(\d{1,6})$/i;

function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// ---- entries ---------------------------------------------------------------------------------

function expertOf(data, query) {
  const match = EXPERT.exec(query);
  const [layer, expert] = match ? [Number(match[1]), Number(match[2])] : [-1, -1];
  const known = data.layers.find(([index]) => index === layer);
  if (!known || expert >= known[1]) return [];
  const value = `${layer}.${expert}`;
  return [{ kind: "expert", value, words: `Layer ${layer}, expert ${expert}` }];
}

function entriesOf(view) {
  const query = view.input.value.trim();
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const listed = KINDS.flatMap(([name, kind]) => {
    const pairs = name === "plans" ? view.plans ?? [] : view.data[name];
    return pairs.map(([value, text]) => ({ kind, value, words: text }));
  });
  const fits = ({ kind, words: text }) => {
    const all = `${kind} ${text}`.toLowerCase();
    return words.every((word) => all.includes(word));
  };
  return [...expertOf(view.data, query), ...listed.filter(fits)].slice(0, MOST_SHOWN);
}

function showEntries(view) {
  view.entries = entriesOf(view);
  view.at = Math.max(0, Math.min(view.at, view.entries.length - 1));
  view.list.replaceChildren(...view.entries.map(({ kind, words }, index) => {
    const isAt = index === view.at;
    const option = element(
      "div",
      { role: "option", id: `entry-${index}`, class: "entry", "aria-selected": String(isAt) },
      element("span", { class: "words" }, words), element("span", { class: "kind" }, kind),
    );
    option.addEventListener("click", () => pick(view, index));
    return option;
  }));
  if (view.entries.length) view.input.setAttribute("aria-activedescendant", `entry-${view.at}`);
  else view.input.removeAttribute("aria-activedescendant");
  const some = view.plans ? "" : " Plans are being read.";
  view.count.textContent = view.entries.length ? "" : `Nothing has these words.${some}`;
}

function pick(view, index) {
  const entry = view.entries[index];
  if (!entry) return;
  view.palette.close();
  view.send("pick", { kind: entry.kind, value: entry.value });
}

function onPaletteKey(view, event) {
  const steps = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key in steps) {
    const count = view.entries.length || 1;
    view.at = (view.at + steps[event.key] + count) % count;
    showEntries(view);
    view.list.children[view.at]?.scrollIntoView({ block: "nearest" });
  } else if (event.key === "Enter") pick(view, view.at);
  else return;
  event.preventDefault();
}

// ---- dialogs ---------------------------------------------------------------------------------

function openPalette(view) {
  if (view.palette.open) return;
  view.help.close();
  view.input.value = "";
  view.at = 0;
  view.palette.showModal();
  view.input.focus();
  showEntries(view);
  view.send("opened", Date.now());
}

function openHelp(view) {
  if (!view.help.open && !view.palette.open) view.help.showModal();
}

function showKeys(view) {
  view.keys.replaceChildren(...view.data.keys.flatMap(([where, keys]) => [
    element("h3", {}, where),
    element("dl", {}, ...keys.flatMap(([key, what]) => [
      element("dt", {}, element("kbd", {}, key)), element("dd", {}, what),
    ])),
  ]));
}

// ---- share -----------------------------------------------------------------------------------

// Without a secure context there is no clipboard, but a selection can be copied.
function copySelection(text) {
  const field = element("textarea", { "aria-hidden": "true", style: "position:fixed;opacity:0" });
  field.value = text;
  document.body.append(field);
  field.select();
  const isCopied = document.execCommand("copy");
  field.remove();
  return isCopied;
}

async function copyLink(view) {
  const url = window.location.href;
  let isCopied = false;
  try {
    await navigator.clipboard.writeText(url);
    isCopied = true;
  } catch {
    isCopied = copySelection(url);
  }
  view.status.textContent = isCopied ? "Link copied" : "Copy the URL of the browser instead";
  window.clearTimeout(view.timer);
  view.timer = window.setTimeout(() => { view.status.textContent = ""; }, SAID_MS);
}

// ---- keys ------------------------------------------------------------------------------------

function isTyping(event) {
  const target = event.composedPath()[0];
  return target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName ?? "");
}

function onKey(view, event) {
  if (!view.root.isConnected || !view.root.checkVisibility() || event.altKey) return;
  const isGo = (event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k";
  const isHelp = event.key === "?" && !event.ctrlKey && !event.metaKey && !isTyping(event);
  if (!isGo && !isHelp) return;
  event.preventDefault();
  event.stopPropagation();
  if (isGo) openPalette(view);
  else openHelp(view);
}

// ---- building --------------------------------------------------------------------------------

function button(name, label, icon, action, shortcut) {
  const attributes = { type: "button", class: name, "aria-label": label, title: label };
  if (shortcut) attributes["aria-keyshortcuts"] = shortcut;
  const node = element("button", attributes, element("span", { class: "icon" }, icon));
  node.addEventListener("click", action);
  return node;
}

function moveWithin(buttons, event) {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const next = buttons[buttons.indexOf(event.target) + step];
  if (!next) return;
  event.preventDefault();
  for (const node of buttons) node.tabIndex = node === next ? 0 : -1;
  next.focus();
}

function dialog(label, ...children) {
  const node = element("dialog", { "aria-label": label }, ...children);
  // A click beside it, on its backdrop, is one on the dialog itself.
  node.addEventListener("click", (event) => event.target === node && node.close());
  return node;
}

function closeButton(node) {
  const close = element("button", { type: "button", class: "close", "aria-label": "Close" }, "\u00d7");
  close.addEventListener("click", () => node().close());
  return close;
}

function mount(root) {
  const view = { root, data: null, plans: null, model: "", entries: [], at: 0 };
  view.input = element("input", {
    type: "text", role: "combobox", "aria-label": "Go to", "aria-controls": "entries",
    "aria-expanded": "true", "aria-autocomplete": "list", autocomplete: "off", spellcheck: "false",
    placeholder: "A page, a criterion, a plan, or an expert such as 3.7",
  });
  view.list = element("div", { role: "listbox", id: "entries", "aria-label": "Matches" });
  view.count = element("div", { class: "count", role: "status" });
  view.palette = dialog(
    "Go to",
    element("div", { class: "head" }, view.input, closeButton(() => view.palette)),
    view.list, view.count,
  );
  view.keys = element("div", { class: "keys" });
  view.help = dialog(
    "Keys",
    element("div", { class: "head" }, element("h2", {}, "Keys"), closeButton(() => view.help)),
    view.keys,
  );
  view.status = element("span", { class: "status", role: "status" });
  view.share = button("share", "Share: copy the link to this view", "", () => copyLink(view));
  view.share.append(element("span", { class: "label" }, "Share"));
  view.go = button("go", "Go to a page, criterion, plan or expert", "\u2315", () => openPalette(view),
    "Control+K");
  const bar = element("div", { role: "toolbar", "aria-label": "This view" }, view.go, view.share);
  bar.addEventListener("keydown", (event) => moveWithin([view.go, view.share], event));
  view.go.tabIndex = -1; // one stop of the Tab key; arrows move within
  view.input.addEventListener("input", () => { view.at = 0; showEntries(view); });
  view.palette.addEventListener("keydown", (event) => onPaletteKey(view, event));
  root.replaceChildren(view.status, bar, view.palette, view.help);
  view.onKey = (event) => onKey(view, event);
  window.addEventListener("keydown", view.onKey, true);
  view.destroy = () => root.isConnected || window.removeEventListener("keydown", view.onKey, true);
  return view;
}

const views = new WeakMap();

export default function palette({ data, parentElement, setTriggerValue }) {
  const root = parentElement.querySelector(".palette");
  if (!views.has(root)) views.set(root, mount(root));
  const view = views.get(root);
  view.send = setTriggerValue;
  if (view.model !== data.model) view.plans = null;
  view.model = data.model;
  view.data = data;
  if (data.plans) view.plans = data.plans;
  showKeys(view);
  if (view.palette.open) showEntries(view);
  return view.destroy;
}
