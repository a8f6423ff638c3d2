// Makes Back undo a choice: each action of the user gets one entry in the browser's history,
// however many controls it changes.
//
// Streamlit replaces the URL when a user changes a control, and pushes an entry for every control
// that a callback changes. On Back it restores the controls from the URL.

const PUSHED = "moepruneHistory";

const isBare = (url) => !url.search;

export default function keepHistory() {
  if (window[PUSHED]) return;
  window[PUSHED] = true;
  const replace = window.history.replaceState.bind(window.history);
  let acted = false; // by an action that has no entry yet
  let hasEntry = false; // the last action
  // Nothing but a bare URL lies before this page.
  const isFirst = window.history.length <= 2;
  for (const kind of ["pointerdown", "keydown"]) {
    // Following a link is not a choice: the new page gets its own entry.
    window.addEventListener(kind, (event) => {
      acted = !event.target.closest?.("a[href]");
      hasEntry = false;
    }, true);
  }
  const push = window.history.pushState.bind(window.history);
  window.addEventListener("popstate", () => {
    // Changes that result from going back are not new choices.
    acted = false;
    // A bare URL is completed by Streamlit in an entry of its own: pass over it. The run that it
    // starts changes no control: its URL may arrive after the entry that is passed on to.
    if (isBare(window.location)) window.history.go(isFirst ? 1 : -1);
  }, true);

  function write(state, title, url) {
    const next = new URL(url ?? window.location.href, window.location.href);
    const isChoice = acted && next.search !== window.location.search;
    if (isChoice) [acted, hasEntry] = [false, true];
    (isChoice ? push : replace)(state, title, url);
  }

  window.history.replaceState = write;
  window.history.pushState = (state, title, url) => {
    const next = new URL(url ?? window.location.href, window.location.href);
    if (next.pathname === window.location.pathname) {
      write(state, title, url);
      return;
    }
    // Parameters that the next page's controls write are not a choice.
    acted = false;
    // A bare URL opens on the best plan; with `opened` it keeps a plan of defaults.
    if (isBare(next)) next.search = "?opened=1";
    // A button that changes the page clears this page's parameters first, as a choice.
    (hasEntry ? replace : push)(state, title, next.href);
  };
}
