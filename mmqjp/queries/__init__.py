"""Standing queries: text to algebra to rows of R_T, who subscribed, and what a store keeps of them."""
