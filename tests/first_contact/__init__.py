"""What new users try first: their own steps, as their library's guide writes them, on the mesh that
`jax.make_mesh` gives them."""
