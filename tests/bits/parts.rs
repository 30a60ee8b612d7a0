//! The parts of the comparison, and the process that computes one.

use std::{
    collections::HashMap,
    process::{Command, ExitCode},
    sync::{Arc, LazyLock, Mutex, OnceLock},
};

use autobwd::{Executor, Result};

use crate::{formulas, instruction_sets::InstructionSet, models, operators, products, rows, workloads};

/// The environment variable with the name of the part that a process computes.
pub(crate) const CHILD: &str = "AUTOBWD_BITS";

/// Some results that are compared.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// The numbers of threads that it runs on.
    threads: &'static [usize],
    /// Computes the results, each on all executors.
    run: fn(&[Executor]) -> Result<Vec<BitResult>>,
    /// Why it is not computed where the baseline has no fused multiply-add.
    not_emulated: Option<&'static str>,
}

/// Hashes of a result that was computed in several ways, which must agree.
#[derive(Clone, Debug)]
pub(crate) struct BitResult {
    /// `softmax::3 float32 Out`: the results with the same first word have one hash in the file.
    pub(crate) name: String,
    /// Each way with its hash.
    pub(crate) hashes: Vec<(String, u64)>,
}

/// With sizes that its author did not intend, a loop may not end.
const LOOP: u64 = 10_000;
const SLOW: Option<&str> = Some("exact emulation takes minutes");
const THREADS: &[usize] = &[1, 2, 3, 7];

pub(crate) const PARTS: [&Part; 8] = [
    &Part { name: "operators", threads: THREADS, run: operators::samples, not_emulated: None },
    &Part { name: "large_operators", threads: THREADS, run: operators::large, not_emulated: SLOW },
    &Part { name: "formulas", threads: THREADS, run: formulas::formulas, not_emulated: None },
    &Part { name: "products", threads: THREADS, run: products::products, not_emulated: None },
    &Part { name: "rows_of_products", threads: &[1], run: rows::rows, not_emulated: None },
    &Part { name: "models", threads: THREADS, run: models::models, not_emulated: None },
    &Part { name: "small_workloads", threads: THREADS, run: workloads::small, not_emulated: None },
    &Part { name: "workloads", threads: THREADS, run: workloads::large, not_emulated: SLOW },
];

impl Part {
    pub(crate) fn left_out(&self, isa: InstructionSet) -> Option<&'static str> {
        self.not_emulated.filter(|_| isa.is_emulated())
    }

    /// Its results with an instruction set, computed once.
    pub(crate) fn results(&self, isa: InstructionSet) -> Result<Arc<Vec<BitResult>>, String> {
        type Results = Arc<OnceLock<Result<Arc<Vec<BitResult>>, String>>>;
        static KNOWN: LazyLock<Mutex<HashMap<(&str, InstructionSet), Results>>> =
            LazyLock::new(Mutex::default);
        let known = KNOWN.lock().map_err(|e| e.to_string())?.entry((self.name, isa)).or_default().clone();
        known.get_or_init(|| self.compute(isa).map(Arc::new)).clone()
    }

    /// Runs this binary again.
    fn compute(&self, isa: InstructionSet) -> Result<Vec<BitResult>, String> {
        let binary = std::env::current_exe().map_err(|e| e.to_string())?;
        let output = Command::new(binary).env("AUTOBWD_ISA", isa.name()).env(CHILD, self.name).output();
        let output = output.map_err(|e| e.to_string())?;
        if !output.status.success() {
            return Err(format!("with {}: {}", isa.name(), String::from_utf8_lossy(&output.stderr)));
        }
        String::from_utf8_lossy(&output.stdout).lines().map(parsed).collect()
    }
}

/// Prints the results of a part, one a line.
pub(crate) fn print_results(name: &str) -> ExitCode {
    let Some(part) = PARTS.iter().find(|part| part.name == name) else {
        eprintln!("no part `{name}`");
        return ExitCode::FAILURE;
    };
    let executor = |threads: &usize| Executor::with_threads(*threads).loop_limit(LOOP);
    let executors: Vec<Executor> = part.threads.iter().map(executor).collect();
    match (part.run)(&executors) {
        Ok(results) => results.iter().for_each(|result| {
            let hashes = result.hashes.iter().map(|(way, hash)| format!("\t{way}\t{hash:016x}"));
            println!("{}{}", result.name, hashes.collect::<String>());
        }),
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn parsed(line: &str) -> Result<BitResult, String> {
    let mut words = line.split('\t');
    let mut result = BitResult { name: words.next().unwrap_or_default().into(), hashes: vec![] };
    while let (Some(way), Some(hash)) = (words.next(), words.next()) {
        let hash = u64::from_str_radix(hash, 16).map_err(|e| format!("{line}: {e}"))?;
        result.hashes.push((way.into(), hash));
    }
    if result.hashes.is_empty() { Err(format!("{line}: no result")) } else { Ok(result) }
}
