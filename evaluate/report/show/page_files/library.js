"use strict";
// Unpacks the charting library. A browser from before 2023 cannot; then the charts say so.
window.quantlineLibrary = (async function () {
  const packed = atob(document.getElementById("library").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
  script.remove(); // it has run
})();
window.quantlineLibrary.catch(() => {}); // each chart reports it
