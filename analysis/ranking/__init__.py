"""From statistics to an order: rankings of experts and neurons, and what is said of them."""
