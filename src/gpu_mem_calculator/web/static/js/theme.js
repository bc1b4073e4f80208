/* Light, dark, or as the system has it. A classic script in the head, so that no page begins in
   the wrong colours; every page has a button with the id "theme". */

(() => {
  const KEPT = "gpu-mem-calc.theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  const root = document.documentElement;

  function kept() {
    try {
      return localStorage.getItem(KEPT);
    } catch {
      return null; // a browser that keeps nothing begins with auto each time
    }
  }

  function show(theme) {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
    const button = document.getElementById("theme");
    if (!button) return;
    button.textContent = `Theme: ${theme}`;
    button.title = `Change to ${NEXT[theme]}`;
  }

  function keep(theme) {
    try {
      localStorage.setItem(KEPT, theme);
    } catch {
      /* it holds until the page is closed */
    }
  }

  let theme = NEXT[kept()] ? kept() : "auto";
  show(theme);
  document.addEventListener("DOMContentLoaded", () => {
    show(theme);
    document.getElementById("theme")?.addEventListener("click", () => {
      theme = NEXT[theme];
      keep(theme);
      show(theme);
    });
  });
})();
