//! Signing, encryption and the keys for both.
