// Streamlit's skip link jumps past the navigation; here it also skips the controls.

const LINK = '[data-testid="stSkipToContent"]';
const ADDED = "moepruneSkip";

// The main element of a page is the first of these that it has.
const MAIN = [
  ".st-key-explore-map", ".st-key-compare-map", ".st-key-plan-editor",
  ".st-key-export-start button",
  '[data-testid="stMain"] [data-testid="stPlotlyChart"]', '[data-testid="stMain"] h1',
];

// Centred if it leaves room, so that the controls above it stay visible.
function scrollTo(found) {
  const isHigh = found.getBoundingClientRect().height > window.innerHeight / 2;
  found.scrollIntoView({ block: isHigh ? "start" : "center" });
}

function skip(event) {
  const found = MAIN.map((selector) => document.querySelector(selector)).find(Boolean);
  if (!event.target.closest?.(LINK) || !found) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  if (!found.matches("button")) found.tabIndex = -1;
  found.focus();
  scrollTo(found);
}

// The story turns by arrow keys, or the Page keys of a presenter's remote, and Escape leaves it. Who
// came to a control by the Tab key moves within it.

const TURNS = { ArrowLeft: "story-back", PageUp: "story-back", ArrowRight: "story-next",
  PageDown: "story-next", Escape: "story-close" };

function turn(event) {
  const to = document.querySelector(`.st-key-${TURNS[event.key]} :is(button, a)`);
  const isArrow = event.key.startsWith("Arrow");
  if (event.composedPath()[0].closest?.("dialog")) return; // its keys are its own
  if (!to || (isArrow && event.target.matches('[role="slider"], [role="radio"]:focus-visible'))) return;
  event.preventDefault();
  event.stopImmediatePropagation();
  to.click();
}

// A group of choices is one stop of the Tab key, as radio buttons of HTML are; arrows move within.

const GROUP = '[data-testid="stButtonGroup"] [role="radiogroup"]';
const STEPS = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };

const choicesOf = (group) => [...group.querySelectorAll('button[role="radio"]')];

// The page scrolls with the focus on anything in it, so it is no stop of its own.
const PAGE = '[data-testid="stMain"]';

function leaveOneStop() {
  const page = document.querySelector(PAGE);
  if (page && page.tabIndex !== -1) page.tabIndex = -1;
  for (const group of document.querySelectorAll(GROUP)) {
    const choices = choicesOf(group);
    const stop = choices.find((each) => each === document.activeElement)
      ?? choices.find((each) => each.ariaChecked === "true") ?? choices[0];
    for (const each of choices) {
      const index = each === stop ? 0 : -1;
      if (each.tabIndex !== index) each.tabIndex = index;
    }
  }
}

function moveWithin(event) {
  const group = event.target.closest?.(GROUP);
  const step = STEPS[event.key];
  if (!group || !step) return;
  const choices = choicesOf(group);
  const next = choices[choices.indexOf(event.target) + step];
  event.preventDefault();
  event.stopPropagation();
  if (!next) return;
  next.focus();
  leaveOneStop();
}

function haveOneStop() {
  document.addEventListener("keydown", moveWithin, true);
  const observer = new MutationObserver(leaveOneStop);
  const attributeFilter = ["aria-checked", "tabindex"];
  observer.observe(document.body, { attributeFilter, childList: true, subtree: true });
  leaveOneStop();
}

// On a phone the navigation is in the sidebar, which would cover the page that a link leads to.

const COVERS_PX = 768; // narrower windows of Streamlit have such a sidebar
const CLOSE = '[data-testid="stSidebarCollapseButton"] button';

function uncover(event) {
  const isLink = event.target.closest?.('[data-testid="stSidebarNavLink"]');
  if (!isLink || window.innerWidth > COVERS_PX) return;
  setTimeout(() => document.querySelector(CLOSE)?.click()); // once Streamlit has the click
}

// A finger on a chart scrolls the page, also over a map that a drag zooms: plotly takes every touch
// there, and a tap reaches it as a click all the same.

const OVER_A_CHART = ".nsewdrag";

function leaveToThePage(event) {
  if (event.target.closest?.(OVER_A_CHART)) event.stopPropagation();
}

// The style of the first page (`app/static/first_page.css`) goes once that page is seen.

function endFirstPage() {
  const style = document.getElementById("first_page");
  const page = document.querySelector('[data-testid="stMainBlockContainer"]');
  const isSeen = () => !page || getComputedStyle(page).opacity !== "0";
  const end = () => isSeen() && (observer.disconnect(), style?.remove());
  const observer = new MutationObserver(end);
  observer.observe(document.body, { childList: true, subtree: true });
  end();
}

export default function keepFocus() {
  if (window[ADDED]) return;
  window[ADDED] = true;
  endFirstPage();
  document.addEventListener("click", skip, true);
  document.addEventListener("click", uncover);
  document.addEventListener("touchstart", leaveToThePage, { capture: true, passive: true });
  window.addEventListener("keydown", turn, true);
  haveOneStop();
}
