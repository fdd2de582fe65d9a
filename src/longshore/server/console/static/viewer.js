"use strict";
document.documentElement.classList.toggle("dark-mode", matchMedia("(prefers-color-scheme: dark)").matches);
SwaggerUIBundle({
  url: document.getElementById("viewer").dataset.document,
  dom_id: "#viewer",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // the default is a service on another host
  presets: [SwaggerUIBundle.presets.apis],
});
