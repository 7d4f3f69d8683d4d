"""torch and other packages under the same laws, one adapter each. An adapter computes nothing: it names and claims."""
