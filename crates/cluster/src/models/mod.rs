//! Models of the protocols, checked in every interleaving of small cases.

mod explore;
mod spaces;
