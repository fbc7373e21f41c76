//! Habits of the whole workspace that no lint keeps: sizes, openings, forbidden words, and which crate may know which.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a source file. Tests get more: a table of cases reads better in one piece.
const FILE_LINES_MAX: usize = 500;
const TEST_FILE_LINES_MAX: usize = 700;
/// Columns of a line, string literals left out: they are messages, and rustfmt does not break them.
const COLUMNS_MAX: usize = 120;
/// Lines of a function.
const FUNCTION_LINES_MAX: usize = 100;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().expect("the workspace")
}

struct Source {
    /// From the workspace's root, with `/`.
    name: String,
    text: String,
}

fn walk(folder: &Path, end: &str, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && !name.starts_with('.') {
                walk(&path, end, out);
            }
        } else if name.ends_with(end) {
            out.push(path);
        }
    }
}

fn files(end: &str) -> Vec<Source> {
    let (root, mut paths) = (root(), Vec::new());
    walk(&root, end, &mut paths);
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).expect("below the root").to_string_lossy().replace('\\', "/");
        Source { name, text: fs::read_to_string(path).expect("UTF-8") }
    };
    paths.into_iter().map(read).collect()
}

fn is_test(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs") || name.ends_with("_tests.rs")
}

/// The line without what stands inside string literals.
fn without_strings(line: &str) -> String {
    // A raw string ends at its own mark; what it holds is not to be broken.
    if let (Some(start), Some(end)) = (line.find("r#\""), line.rfind("\"#")) {
        return format!("{}{}", &line[..start], &line[end.max(start)..]);
    }
    let (mut out, mut inside, mut escaped) = (String::new(), false, false);
    for letter in line.chars() {
        match letter {
            _ if escaped => escaped = false,
            '\\' if inside => escaped = true,
            '"' => inside = !inside,
            _ if !inside => out.push(letter),
            _ => {}
        }
    }
    out
}

fn function_starts(line: &str) -> bool {
    let code = line.trim_start();
    let code = ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe "]
        .iter()
        .fold(code, |code, word| code.strip_prefix(word).unwrap_or(code));
    code.starts_with("fn ")
}

/// Functions longer than allowed, as `name:line: lines`. rustfmt closes a function at the indentation it began with.
fn long_functions(source: &Source, found: &mut Vec<String>) {
    let lines: Vec<&str> = source.text.lines().collect();
    for (start, line) in lines.iter().enumerate() {
        let indent = &line[..line.len() - line.trim_start().len()];
        if !function_starts(line) || line.trim_end().ends_with(['}', ';']) {
            continue;
        }
        let close = format!("{indent}}}");
        let length = lines[start..].iter().position(|line| *line == close).map_or(0, |end| end + 1);
        if length > FUNCTION_LINES_MAX {
            found.push(format!("{}:{}: a function of {length} lines; split it", source.name, start + 1));
        }
    }
}

fn check(sources: &[Source]) -> Vec<String> {
    // Split, so that this file does not hold them.
    let banned = [
        (concat!("todo", "!("), "finish it"),
        (concat!("unimplemented", "!("), "finish it"),
        (concat!("dbg", "!("), "take it out"),
        (concat!("#[", "ignore"), "assert what happens instead"),
        (concat!("/", "work/"), "no path of one machine"),
        (concat!("/", "root/"), "no path of one machine"),
        (concat!("/", "home/"), "no path of one machine"),
    ];
    let mut found = Vec::new();
    for source in sources {
        let Source { name, text } = source;
        if !text.starts_with("//!") {
            found.push(format!("{name}:1: no `//!`; say what the file is for"));
        }
        let (lines, most) = (text.lines().count(), if is_test(name) { TEST_FILE_LINES_MAX } else { FILE_LINES_MAX });
        // A module's own tests may follow its code in the same file; they do not count.
        let code = text.lines().position(|line| line == "#[cfg(test)]").unwrap_or(lines);
        if code > most {
            found.push(format!("{name}:{code}: {code} lines; at most {most}, split it"));
        }
        for (index, line) in text.lines().enumerate() {
            let columns = without_strings(line).chars().count();
            if line.chars().count() > COLUMNS_MAX && columns > COLUMNS_MAX {
                found.push(format!("{name}:{}: {columns} columns; at most {COLUMNS_MAX}", index + 1));
            }
            for (word, instead) in banned {
                if line.contains(word) {
                    found.push(format!("{name}:{}: `{word}`: {instead}", index + 1));
                }
            }
        }
        long_functions(source, &mut found);
    }
    found
}

#[test]
fn every_source_file_keeps_the_habits() {
    let sources = files(".rs");
    assert!(sources.len() > 10, "the walk found only {} files", sources.len());
    let found = check(&sources);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn the_check_finds_what_it_is_for() {
    let long = format!("//! For.\nfn f() {{\n{}}}\n", "    let x = 1;\n".repeat(FUNCTION_LINES_MAX));
    let cases = [
        ("a/src/x.rs", "fn f() {}\n".to_owned(), "no `//!`"),
        ("a/src/x.rs", format!("//! For.\n{}", "\n".repeat(FILE_LINES_MAX)), "501 lines"),
        ("a/src/x.rs", format!("//! For.\n// {}\n", "x".repeat(COLUMNS_MAX)), "123 columns"),
        ("a/src/x.rs", format!("//! For.\nfn f() {{ {}!() }}\n", concat!("to", "do")), "finish it"),
        ("a/src/x.rs", format!("//! For.\n// {}work/x\n", "/"), "no path"),
        ("a/src/x.rs", long, "a function of 102 lines"),
    ];
    for (name, text, message) in cases {
        let found = check(&[Source { name: name.to_owned(), text }]);
        assert!(found.len() == 1 && found[0].contains(message), "{message}: {found:?}");
    }
    let fine = format!("//! For.\nconst M: &str = \"{}\";\n", "x".repeat(200));
    assert_eq!(check(&[Source { name: "a/src/x.rs".to_owned(), text: fine }]), Vec::<String>::new());
}

/// The names that a manifest's table holds; `None` when there is no such manifest.
fn dependencies(manifest: &str, table: &str) -> Option<Vec<(String, toml::Value)>> {
    let text = fs::read_to_string(root().join(manifest)).ok()?;
    let value: toml::Table = text.parse().expect("a manifest");
    let table = value.get(table).and_then(toml::Value::as_table).cloned().unwrap_or_default();
    Some(table.into_iter().collect())
}

fn names(folder: &str) -> Option<Vec<String>> {
    let names = dependencies(&format!("{folder}/Cargo.toml"), "dependencies")?;
    Some(names.into_iter().map(|(name, _)| name).collect())
}

#[test]
fn dependencies_point_one_way() {
    const OURS: [(&str, &[&str]); 7] = [
        ("core", &[]),
        ("kafka-dev", &[]),
        ("sim", &["seriatim-core"]),
        ("kafka", &["seriatim-core"]),
        ("ingest", &["seriatim-core", "seriatim-kafka"]),
        ("scenarios", &["seriatim-core", "seriatim-sim", "seriatim-kafka", "seriatim-kafka-dev", "seriatim-ingest"]),
        (
            "benches",
            &["seriatim-core", "seriatim-sim", "seriatim-kafka", "seriatim-kafka-dev", "seriatim-ingest", "scenarios"],
        ),
    ];
    for (folder, allowed) in OURS {
        for name in names(folder).unwrap_or_default() {
            let is_ours = name.starts_with("seriatim-") || name == "scenarios";
            assert!(!is_ours || allowed.contains(&name.as_str()), "{folder}/Cargo.toml: {folder} must not know {name}");
        }
    }
}

#[test]
fn core_knows_no_client_no_simulator_no_clock_and_no_chance() {
    let banned =
        ["madsim", "rdkafka", "rand", "rand_chacha", "getrandom", "fastrand", "chrono", "uuid", "tracing", "log"];
    for name in names("core").expect("core has a manifest") {
        assert!(!banned.contains(&name.as_str()), "core/Cargo.toml: {name} belongs behind a port");
    }
    let workspace: toml::Table = fs::read_to_string(root().join("Cargo.toml")).expect("UTF-8").parse().expect("TOML");
    let shared = &workspace["workspace"]["dependencies"]["tokio"];
    let own = dependencies("core/Cargo.toml", "dependencies").expect("core has a manifest");
    let own = own.into_iter().find(|(name, _)| name == "tokio").map(|(_, value)| value);
    let features = [Some(shared), own.as_ref()].into_iter().flatten().filter_map(|value| value.get("features"));
    for feature in features.flat_map(|list| list.as_array().cloned().unwrap_or_default()) {
        assert_eq!(feature.as_str(), Some("sync"), "core may have tokio's `sync` and nothing else of it");
    }
    assert_eq!(shared.get("default-features").and_then(toml::Value::as_bool), Some(false));
}

#[test]
fn madsim_is_named_in_one_file() {
    // `cfg(madsim)` is the switch, not the crate; paths and imports are the crate.
    let uses = |line: &str| {
        let code = line.trim_start();
        !code.starts_with("//") && (without_strings(code).contains("madsim::") || code.starts_with("use madsim"))
    };
    for Source { name, text } in files(".rs") {
        for (index, line) in text.lines().enumerate() {
            assert!(
                name == "sim/src/executor.rs" || !uses(line),
                "{name}:{}: madsim lives in sim/src/executor.rs alone",
                index + 1
            );
        }
    }
}
