"""Small repositories, one for each layout that people have, and what Tierwall answers about them."""
