"""What SGLang holds on a rank: what is loaded, the pool that is left, and what runs beside it."""
