//! The scenarios as tests: fixed seeds of each, drawn plans, determinism, the flawed pipelines, and the corpus.
//!
//! `SERIATIM_SEED=N cargo test scenarios::named` runs that seed alone.

mod scenarios {
    mod corpus;
    mod determinism;
    mod drawn;
    mod faults;
    mod named;
    mod ripgrep;
    mod support;
    mod teeth;
}
