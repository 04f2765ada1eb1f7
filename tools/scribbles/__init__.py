"""Convert scribbles drawn by people, simulate scribbles from dense masks, and measure and compare scribbles."""
