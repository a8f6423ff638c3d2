// A text whose tokens can be chosen: a click, or arrow keys and Enter. Only a choice is sent to
// Python. Tokens become text, never markup.

const STEPS = {
  ArrowLeft: (place) => place - 1,
  ArrowRight: (place) => place + 1,
  Home: () => 0,
  End: (_, last) => last,
};

// The token one line up or down that lies nearest to the left edge of this one.
function vertical(view, place, direction) {
  const boxes = view.nodes.map((node) => node.getBoundingClientRect());
  const from = boxes[place];
  const isBeyond = (box) => (direction < 0 ? box.top < from.top - 4 : box.top > from.top + 4);
  let best = place;
  boxes.forEach((box, index) => {
    if (!isBeyond(box)) return;
    const cost = (each) => Math.abs(each.top - from.top) * 1000 + Math.abs(each.left - from.left);
    if (best === place || cost(box) < cost(boxes[best])) best = index;
  });
  return best;
}

function focusOn(view, place) {
  const within = Math.max(view.first, Math.min(view.nodes.length - 1, place));
  view.nodes.forEach((node, index) => { node.tabIndex = index === within ? 0 : -1; });
  view.nodes[within]?.focus();
}

// The time stamp makes a repeated choice a new value, so that Python sees it.
function choose(view, place) {
  if (place < view.first) return;
  view.nodes.forEach((node, index) => node.setAttribute("aria-selected", String(index === place)));
  view.report({ number: place + 1, at: Date.now() });
}

function onKey(view, event) {
  const place = view.nodes.indexOf(event.target);
  if (place < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const step = STEPS[event.key];
  const isLine = event.key === "ArrowUp" || event.key === "ArrowDown";
  if (step) focusOn(view, step(place, view.nodes.length - 1));
  else if (isLine) focusOn(view, vertical(view, place, event.key === "ArrowUp" ? -1 : 1));
  else if (event.key === "Enter" || event.key === " ") choose(view, place);
  else return;
  event.preventDefault();
  event.stopPropagation(); // the page's own shortcuts must not fire as well
}

function build(view, data) {
  const content = [];
  view.nodes = data.tokens.map((text, index) => {
    const node = document.createElement("span");
    node.className = "token";
    node.setAttribute("role", "option");
    const [, blanks, rest] = /^( *)([^]*)$/.exec(text);
    node.textContent = rest;
    if (index < data.first - 1) node.setAttribute("aria-disabled", "true");
    node.addEventListener("click", () => { focusOn(view, index); choose(view, index); });
    content.push(blanks, node); // blanks stay outside, so that lines break before the box
    return node;
  });
  view.root.replaceChildren(...content);
  view.tokens = data.tokens;
}

function update(view, data) {
  const isSame = view.tokens?.length === data.tokens.length
    && view.tokens.every((text, index) => text === data.tokens[index]);
  view.first = data.first - 1;
  if (!isSame) build(view, data);
  const focused = view.nodes.findIndex((node) => node.matches(":focus"));
  view.nodes.forEach((node, index) => {
    node.style.background = data.colors[index];
    node.style.color = data.inks[index];
    node.title = data.notes[index];
    node.setAttribute("aria-label", data.notes[index]);
    node.setAttribute("aria-selected", String(index === data.selected - 1));
    node.tabIndex = index === (focused < 0 ? data.selected - 1 : focused) ? 0 : -1;
  });
}

// Streamlit calls the function again after every change of data or theme, on the same elements.
const views = new WeakMap();

export default function tokenText({ data, parentElement, setStateValue }) {
  const root = parentElement.querySelector(".token-text");
  if (!views.has(root)) {
    const view = { root, nodes: [] };
    views.set(root, view);
    root.setAttribute("role", "listbox");
    root.setAttribute("aria-label", "Tokens: arrow keys move, Enter chooses");
    root.addEventListener("keydown", (event) => onKey(view, event));
  }
  const view = views.get(root);
  view.report = (token) => setStateValue("token", token);
  update(view, data);
}
