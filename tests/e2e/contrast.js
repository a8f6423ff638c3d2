// Text of the page whose contrast with its ground is below 4.5:1 by WCAG: "ratio: text".
// Colours are as rendered, translucent ones laid over the grounds of their ancestors. Not judged:
// what is disabled, icons, and what is painted (charts, grids of numbers).
() => {
  const NOT_JUDGED = "svg, style, script, noscript, [disabled], [aria-disabled=true], canvas, " +
    "[data-testid=stIconMaterial], .katex-mathml, table[role=grid]";
  const parse = (text) => {
    const parts = text.match(/[\d.]+/g).map(Number);
    const scale = text.startsWith("color(srgb") ? 255 : 1;
    return [...parts.slice(0, 3).map((part) => part * scale), parts[3] ?? 1];
  };
  const over = (top, bottom) => [0, 1, 2].map((i) => top[i] * top[3] + bottom[i] * (1 - top[3]));
  const luminance = (rgb) => {
    const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = rgb.map((part) => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement;
    const shown = { opacityProperty: true, visibilityProperty: true };
    if (!node.textContent.trim() || !element.checkVisibility(shown)) continue;
    if (element.closest(NOT_JUDGED)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) continue;
    // The value above a slider's thumb is inside it only in the tree.
    const above = element.closest("[data-testid=stSliderThumbValue]");
    const start = above ? element.closest("[data-testid=stSlider]") : element;
    const chain = [];
    for (let at = start; at; at = at.parentElement) chain.unshift(at);
    let ground = [255, 255, 255], opacity = 1;
    for (const at of chain) {
      const style = getComputedStyle(at);
      opacity *= Number(style.opacity);
      // The value above a slider's thumb is inside it only in the tree.
      const color = parse(style.backgroundColor);
      ground = over([...color.slice(0, 3), color[3] * opacity], ground);
    }
    const color = parse(getComputedStyle(element).color); color[3] *= opacity;
    const [high, low] = [luminance(over(color, ground)), luminance(ground)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)}: ${node.textContent.trim().slice(0, 40)}`);
  }
  return found;
}
