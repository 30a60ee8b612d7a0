//! The comparison of a part, and the table of all comparisons.

use std::{collections::BTreeMap, sync::Mutex};

use crate::{
    hashes::{expected, grouped},
    instruction_sets::InstructionSet,
    parts::{BitResult, Part},
};

/// Results that may differ from the reference's, each with an instruction set, the start of its name, and the reason.
const EXEMPT: [(InstructionSet, &str, &str); 0] = [];

/// The number of differing results that a failure names.
const NAMED: usize = 8;

/// A row of the table.
struct Compared {
    part: &'static str,
    isa: &'static str,
    results: usize,
    /// The number of ways in which the results were computed: numbers of threads, or of rows.
    ways: usize,
    /// The numbers of results that differ: among the ways, from the reference, and from the file.
    differ: [usize; 3],
}

static TABLE: Mutex<Vec<Compared>> = Mutex::new(vec![]);

/// Compares the results of a part with an instruction set: among numbers of threads, with the results of the reference,
/// and with the file.
///
/// # Errors
/// The first results that differ.
pub(crate) fn compare(part: &'static Part, isa: InstructionSet) -> Result<(), String> {
    let reference = InstructionSet::reference();
    let (found, others) = (part.results(isa)?, part.results(reference)?);
    let unequal = |result: &&BitResult| result.hashes.iter().any(|(_, hash)| *hash != result.hashes[0].1);
    let by_way: Vec<String> = found.iter().filter(unequal).map(ways_that_differ).collect();
    let by_isa = differences(&found, &others, isa)?;

    let groups = grouped(&found);
    let file = expected(part.name, &grouped(&others))?;
    let names = groups.keys().chain(file.keys().filter(|name| !groups.contains_key(*name)));
    let by_file: Vec<String> = names.filter(|name| groups.get(*name) != file.get(*name)).cloned().collect();

    if let Ok(mut table) = TABLE.lock() {
        let ways = found.iter().map(|result| result.hashes.len()).max().unwrap_or(0);
        let differ = [by_way.len(), by_isa.len(), by_file.len()];
        table.push(Compared { part: part.name, isa: isa.name(), results: found.len(), ways, differ });
    }
    let said = [
        ("results differ among numbers of threads or rows", by_way),
        (&*format!("results differ from those with {}", reference.name()), by_isa),
        ("hashes differ from `tests/bits/hashes.txt` (`UPDATE=1` rewrites it)", by_file),
    ];
    let said = said.into_iter().filter(|(_, names)| !names.is_empty()).map(|(what, names)| {
        let more = if names.len() > NAMED { "\n  …" } else { "" };
        let first = &names[..names.len().min(NAMED)];
        format!("{} {what}:\n  {}{more}", names.len(), first.join("\n  "))
    });
    let said: Vec<String> = said.collect();
    if said.is_empty() { Ok(()) } else { Err(said.join("\n")) }
}

/// `name: 1 threads, 3 threads; otherwise: 7 threads`
fn ways_that_differ(result: &BitResult) -> String {
    let first = result.hashes[0].1;
    let ways = |same: bool| {
        let ways = result.hashes.iter().filter(|(_, hash)| (*hash == first) == same);
        let mut ways: Vec<&str> = ways.map(|(way, _)| way.as_str()).collect();
        // The products of a batch are one way.
        ways.dedup();
        ways.join(", ")
    };
    format!("{}: {}; otherwise: {}", result.name, ways(true), ways(false))
}

/// The names of the results that differ between an instruction set and the reference, without exempt ones.
fn differences(
    found: &[BitResult],
    reference: &[BitResult],
    isa: InstructionSet,
) -> Result<Vec<String>, String> {
    let hashes = |results: &[BitResult]| {
        results.iter().map(|r| (r.name.clone(), r.hashes[0].1)).collect::<BTreeMap<_, _>>()
    };
    let (a, b) = (hashes(found), hashes(reference));
    if a.len() < found.len() {
        return Err("two results have the same name".into());
    }
    let mut names: Vec<String> =
        a.keys().chain(b.keys()).filter(|name| a.get(*name) != b.get(*name)).cloned().collect();
    names.sort();
    names.dedup();
    for (_, start, reason) in EXEMPT.iter().filter(|(exempt, ..)| *exempt == isa) {
        let all = names.len();
        names.retain(|name| !name.starts_with(start));
        if names.len() == all && a.keys().any(|name| name.starts_with(start)) {
            return Err(format!(
                "`{start}` ({reason}) has the same bits: take it off the list of exempt results"
            ));
        }
    }
    Ok(names)
}

/// Prints the comparisons that were made.
pub(crate) fn print_table() {
    let Ok(mut table) = TABLE.lock() else { return };
    table.sort_by_key(|row| (row.part, row.isa));
    let reference = InstructionSet::reference().name();
    println!(
        "| results | instruction set | number | ways | differ by way | from {reference} | from the file |"
    );
    println!("|---|---|---|---|---|---|---|");
    for Compared { part, isa, results, ways, differ: [by_way, by_isa, by_file] } in &*table {
        println!("| {part} | {isa} | {results} | {ways} | {by_way} | {by_isa} | {by_file} |");
    }
}
