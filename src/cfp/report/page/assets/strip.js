// The strip of blocks: pointing at one, focusing it or tapping it shows what is known of it.
"use strict";
(() => {
  const panel = document.getElementById("block-detail");
  const blocks = [...document.querySelectorAll(".block")];
  let kept = null;  // the block that was tapped: it stays when the pointer leaves

  function show(block) {
    const detail = document.getElementById(block.dataset.detail);
    panel.replaceChildren(...detail.cloneNode(true).childNodes);
    for (const one of blocks) one.setAttribute("aria-pressed", String(one === block));
  }

  blocks.forEach((block, at) => {
    block.setAttribute("aria-pressed", "false");
    block.tabIndex = at === 0 ? 0 : -1;  // one stop for the tab key; arrows move inside
    block.addEventListener("mouseenter", () => show(block));
    block.addEventListener("mouseleave", () => kept && show(kept));
    block.addEventListener("focus", () => show(block));
    block.addEventListener("click", () => { kept = block; show(block); });
    block.addEventListener("keydown", (event) => {
      const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
      const ends = { Home: 0, End: blocks.length - 1 };
      const next = event.key in steps ? at + steps[event.key] : ends[event.key];
      if (next === undefined || !(next in blocks)) return;
      event.preventDefault();
      block.tabIndex = -1;
      blocks[next].tabIndex = 0;
      blocks[next].focus();
    });
  });
})();
