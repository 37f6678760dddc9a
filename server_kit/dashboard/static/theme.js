// Runs before anything is painted, so that no page flashes in the other theme.
"use strict";
{
  const ORDER = ["system", "light", "dark"];
  const kept = () => {
    try {
      return localStorage.getItem("covey-theme");
    } catch {
      return null; // storage may be forbidden; then the choice lasts as long as the page
    }
  };
  const apply = (choice) => {
    if (choice === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
  };
  let choice = ORDER.includes(kept()) ? kept() : "system";
  apply(choice);
  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const say = () => { button.textContent = `Theme: ${choice}`; };
    button.addEventListener("click", () => {
      choice = ORDER[(ORDER.indexOf(choice) + 1) % ORDER.length];
      apply(choice);
      say();
      try {
        localStorage.setItem("covey-theme", choice);
      } catch {
        // as above
      }
    });
    say();
  });
}
