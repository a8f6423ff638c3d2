// Back undoes a choice: what a person changes gets one entry of its own in the browser's history.
//
// Streamlit replaces the address when a person changes a control, and pushes an entry for every
// control that a callback changes; on Back it sets the controls as the address says. Here one act
// of a person makes one entry, however many controls it changes.

const PUSHED = "moepruneHistory";

export default function keepHistory() {
  if (window[PUSHED]) return;
  window[PUSHED] = true;
  const replace = window.history.replaceState.bind(window.history);
  let acted = false;
  for (const kind of ["pointerdown", "keydown"]) {
    // To follow a link is no choice: its page gets its entry.
    window.addEventListener(kind, (event) => {
      acted = !event.target.closest?.("a[href]");
    }, true);
  }
  const push = window.history.pushState.bind(window.history);
  // What follows from going back is no new choice.
  window.addEventListener("popstate", () => { acted = false; }, true);

  function write(state, title, url) {
    const next = new URL(url ?? window.location.href, window.location.href);
    const isChoice = acted && next.search !== window.location.search;
    if (isChoice) acted = false;
    (isChoice ? push : replace)(state, title, url);
  }

  window.history.replaceState = write;
  window.history.pushState = (state, title, url) => {
    const next = new URL(url ?? window.location.href, window.location.href);
    if (next.pathname === window.location.pathname) {
      write(state, title, url);
      return;
    }
    // What the controls of the next page write into its address is no choice.
    acted = false;
    // Start's bare address opens on the best plan: of a plan of defaults it must say that it is one.
    if (next.pathname.endsWith("/") && !next.search) next.search = "?opened=1";
    push(state, title, next.href);
  };
}
