//! The documents of the repository: links lead to files, every chapter of the book is listed and run, and the tests
//! that the book names exist.

use std::{collections::BTreeSet, fs};

use crate::support::sources::{files, root};

/// The chapters of the book, by path.
fn chapters() -> BTreeSet<String> {
    let (book, mut pages) = (root().join("autobwd/book/src"), vec![]);
    files(&book, &["md"], &mut pages);
    let names = pages.iter().map(|page| page.strip_prefix(&book).unwrap().display().to_string());
    names.filter(|name| name != "SUMMARY.md").collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The text outside of fenced code blocks.
fn prose(text: &str) -> String {
    text.split("\n```").step_by(2).collect()
}

/// The targets of links, `](…)`, to files; rustdoc checks those to items.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    let links = text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target));
    links.filter(|target| !target.contains("::") && !target.contains("://"))
}

/// The anchors of a page: its headings in lower case, without punctuation, with hyphens for spaces.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let heading = heading.trim_start_matches('#').trim().to_lowercase();
        heading
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .collect::<String>()
            .replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let mut pages = vec![];
    for folder in ["autobwd", "autobwd-macros", "ops", "templates", "tests", "benches"] {
        files(&root().join(folder), &["md"], &mut pages);
    }
    pages.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]
            .map(|page| root().join(page)),
    );
    let (mut links, mut broken) = (0, vec![]);
    for own in pages {
        for target in targets(&prose(&fs::read_to_string(&own).unwrap())) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { own.clone() } else { own.with_file_name(file) };
            let leads = file.exists()
                && (anchor.is_empty()
                    || anchors(&prose(&fs::read_to_string(&file).unwrap())).contains(anchor));
            links += 1;
            if !leads {
                broken.push(format!("{}: {target}", own.display()));
            }
        }
    }
    assert!(links > 20, "only {links} links were found");
    assert!(broken.is_empty(), "these links lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn every_chapter_of_the_book_is_listed_and_run() {
    // The chapter that needs a web framework is run by the package that has one.
    let run = ["tests/src/book.rs", "ops/http/src/lib.rs"].map(read).concat();
    let summary = read("autobwd/book/src/SUMMARY.md");
    let listed: BTreeSet<String> = targets(&summary).map(String::from).collect();
    assert_eq!(listed, chapters());
    for chapter in chapters() {
        assert!(run.contains(&format!("/book/src/{chapter}\"")), "{chapter} is not run");
    }
}

/// In a line that begins with `Test`, `module::test` is a test of this binary, `case::name` a case of the corpus.
#[test]
fn tests_that_the_book_names_exist() {
    let mut named = 0;
    for chapter in chapters() {
        let text = read(&format!("autobwd/book/src/{chapter}"));
        let lines = text.lines().filter(|line| line.starts_with("Test: ") || line.starts_with("Tests: "));
        for code in lines.flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let exists = match code.split_once("::") {
                Some(("case", name)) => root().join(format!("tests/corpus/cases/{name}.json")).exists(),
                Some((module, name)) => {
                    read(&format!("tests/framework/{module}.rs")).contains(&format!("fn {name}("))
                }
                None => false,
            };
            assert!(exists, "{chapter} names `{code}`, which is no test");
            named += 1;
        }
    }
    assert!(named > 20, "only {named} tests are named");
}

#[test]
fn files_that_the_architecture_names_exist() {
    let mut sources = vec![];
    for folder in ["autobwd", "autobwd-macros", "ops", "tests"] {
        files(&root().join(folder), &["rs"], &mut sources);
    }
    // `plan/fusion.rs` is autobwd/plan/src/fusion.rs.
    let known: Vec<_> = sources.iter().map(|file| file.to_string_lossy().replace("/src/", "/")).collect();
    let page = read("ARCHITECTURE.md");
    let named = page.split('`').filter(|span| span.ends_with(".rs"));
    let missing: Vec<_> = named
        .filter(|name| !known.iter().any(|file| file.ends_with(&format!("/{}", name.replace("src/", "")))))
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names files that do not exist: {missing:?}");
}
