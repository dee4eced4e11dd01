"""Those who answer: `claude` with a model, `offline` without one."""
