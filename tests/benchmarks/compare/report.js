// Copies the configuration. The clipboard is not available in every browser for files, so the fallback selects the text.
for (const button of document.querySelectorAll("button[data-copy]")) {
  const source = document.getElementById(button.dataset.copy);
  const answer = (text) => {
    button.textContent = text;
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  };
  const select = () => {
    getSelection().selectAllChildren(source);
    answer(document.execCommand("copy") ? "Copied" : "Press Ctrl+C");
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    if (!navigator.clipboard) { select(); return; }
    navigator.clipboard.writeText(source.textContent).then(() => answer("Copied"), select);
  });
}
