//! Tests whether all operators of a crate are linked into every kind of artefact.
//!
//! `cargo run --release -p autobwd-benches --bin linking` generates an operator crate under `target/linking`, builds a
//! binary, a test, an example, a shared and a static library with it for every profile, and prints one JSON line each.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use autobwd_benches::{
    BenchResult, Generated, Profile, finish, output,
    source::{self, SourceContent},
};
use clap::Parser;
use serde_json::json;

/// Counts the operators that are linked into each kind of artefact, one JSON line each.
#[derive(Parser)]
struct Args {
    /// Number of operators, half of them with an additional gradient operator.
    #[arg(long, default_value_t = 8)]
    operators: usize,
}

const TEST: &str = "use operators as _;
#[test]
fn count() {
    println!(\"count {}\", autobwd::OpInfoMap::linked().map_or(0, |map| map.len()));
}
";

const NATIVE: &str = "use operators as _;
#[unsafe(no_mangle)]
pub extern \"C\" fn count() -> usize {
    autobwd::OpInfoMap::linked().map_or(0, |map| map.len())
}
";

const LINKED_C: &str = "#include <stdio.h>
size_t count(void);
int main(void) { printf(\"%zu\\n\", count()); }
";

const LOADED_C: &str = "#include <dlfcn.h>
#include <stdio.h>
int main(int n, char **args) {
    void *library = dlopen(args[n - 1], RTLD_NOW);
    size_t (*count)(void) = library ? (size_t (*)(void))dlsym(library, \"count\") : 0;
    printf(\"%zu\\n\", count ? count() : 0);
}
";

fn main() -> ExitCode {
    finish(run(&Args::parse()))
}

fn run(args: &Args) -> BenchResult<ExitCode> {
    let (generated, expected) = (generate(args.operators)?, source::linked(args.operators));
    for profile in Profile::ALL {
        eprintln!("{}, LTO {}", profile.folder(), profile.lto());
        for (kind, seen) in counts(&generated, profile)? {
            let (folder, lto) = (profile.folder(), profile.lto());
            let line =
                json!({ "kind": kind, "profile": folder, "lto": lto, "expected": expected, "seen": seen });
            println!("{line}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn generate(operators: usize) -> BenchResult<Generated> {
    let generated = Generated::new("linking", &["operators", "app", "native"])?;
    let dependency = "operators = { path = \"../operators\" }\n";
    generated.manifest("operators", "")?;
    generated.write("operators/src/lib.rs", &source::library(SourceContent::Operators, operators))?;
    generated.manifest("app", dependency)?;
    for path in ["src/main.rs", "examples/example.rs"] {
        generated.write(&format!("app/{path}"), &source::main("operators"))?;
    }
    generated.write("app/tests/test.rs", TEST)?;
    generated
        .manifest("native", &format!("{dependency}\n[lib]\ncrate-type = [\"cdylib\", \"staticlib\"]\n"))?;
    generated.write("native/src/lib.rs", NATIVE)?;
    generated.write("c/linked.c", LINKED_C)?;
    generated.write("c/loaded.c", LOADED_C)?;
    Ok(generated)
}

/// The number of operators in each kind of artefact.
fn counts(generated: &Generated, profile: Profile) -> BenchResult<Vec<(&'static str, usize)>> {
    generated.cargo(profile, "build", &["--package", "app", "--bins", "--examples"])?;
    generated.cargo(profile, "build", &["--package", "native"])?;
    let test =
        generated.cargo(profile, "test", &["--package", "app", "--test", "test", "--", "--nocapture"])?;
    let run = |file| output(&mut Command::new(generated.built(profile, file)));
    let (shared, archive) =
        (generated.built(profile, "libnative.so"), generated.built(profile, "libnative.a"));
    let c = |source, with: &[&str]| c(generated, source, with);
    let (shared, archive) = (text(&shared)?, text(&archive)?);
    let whole = ["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive", "-lm"];
    Ok(vec![
        ("binary", first_number(&run("app")?)?),
        ("example", first_number(&run("examples/example")?)?),
        ("test", first_number(&test)?),
        ("cdylib, linked", first_number(&c("linked", &[shared])?)?),
        ("cdylib, loaded", first_number(&c("loaded", &[shared])?)?),
        ("staticlib", first_number(&c("linked", &[archive, "-lm"])?)?),
        ("staticlib, whole archive", first_number(&c("linked", &whole)?)?),
    ])
}

/// Compiles a C program, runs it and returns its output; the libraries are also its argument.
fn c(generated: &Generated, source: &str, with: &[&str]) -> BenchResult<String> {
    let (from, program) = (generated.path(format!("c/{source}.c")), generated.path("c/program"));
    output(Command::new("cc").arg("-o").arg(&program).arg(from).args(with))?;
    output(Command::new(program).args(with))
}

fn text(path: &Path) -> BenchResult<&str> {
    Ok(path.to_str().ok_or("the path is not Unicode")?)
}

fn first_number(text: &str) -> BenchResult<usize> {
    // A test prints more than the count.
    let text = text.split("count ").last().unwrap_or(text);
    let number = text.split_whitespace().find_map(|word| word.parse().ok());
    Ok(number.ok_or_else(|| format!("there is no number in {text:?}"))?)
}
