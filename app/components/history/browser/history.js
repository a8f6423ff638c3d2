// Back undoes a choice: what a person changes gets an entry of its own in the browser's history.
//
// Streamlit replaces the address when a control changes, and on Back it sets the controls as the
// address says. So all that is missing is the entry. One act of a person makes one entry: a
// control that changes others writes several times.

const PUSHED = "moepruneHistory";

export default function keepHistory() {
  if (window[PUSHED]) return;
  window[PUSHED] = true;
  const replace = window.history.replaceState.bind(window.history);
  let acted = false;
  for (const kind of ["pointerdown", "keydown"]) {
    window.addEventListener(kind, () => { acted = true; }, true);
  }
  // A page that was gone to has its entry; what its controls write into the address is no choice.
  const push = window.history.pushState.bind(window.history);
  window.history.pushState = (...entry) => { acted = false; push(...entry); };
  // What follows from going back is no new choice.
  window.addEventListener("popstate", () => { acted = false; }, true);

  window.history.replaceState = (state, title, url) => {
    const next = new URL(url ?? window.location.href, window.location.href);
    const here = window.location;
    if (!acted || next.pathname !== here.pathname || next.search === here.search) {
      replace(state, title, url);
      return;
    }
    acted = false;
    push(state, title, url);
  };
}
