//! What somebody reads who builds with a RUSTFLAGS variable, which replaces the flags of `.cargo/config.toml`.
//!
//! Building the whole crate that way would take minutes, so the check alone is cut out of the source and given to rustc.

use std::path::Path;
use std::process::{Command, Output};

const SOURCE: &str = include_str!("../src/executor.rs");

/// The `compile_error!` with its condition.
fn check() -> &'static str {
    let start = SOURCE.find("#[cfg(not(madsim))]\ncompile_error!(").expect("executor.rs checks its cfg");
    let end = SOURCE[start..].find("\n);\n").expect("the macro ends");
    &SOURCE[start..start + end + "\n);\n".len()]
}

fn rustc(name: &str, flags: &[&str]) -> Output {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let source = folder.join(name).with_extension("rs");
    std::fs::write(&source, check()).expect("written");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--crate-type", "lib", "--emit", "metadata", "--out-dir"]).arg(folder);
    rustc.args(flags).arg(source).output().expect("rustc starts")
}

#[test]
fn a_build_without_the_cfg_says_what_to_do() {
    let refused = rustc("refused", &["-C", "opt-level=3"]);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    for words in ["error: seriatim-sim is built without `--cfg madsim`", "unset RUSTFLAGS", ".cargo/config.toml"] {
        assert!(said.contains(words), "no `{words}` in:\n{said}");
    }
}

#[test]
fn a_build_with_the_cfg_is_let_through() {
    let built = rustc("built", &["--cfg", "madsim"]);
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
}
