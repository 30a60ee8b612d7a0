//! Times of recording an operator and of its backward pass, in libraries with a tape.

use std::{fmt::Write as _, path::Path};

use autobwd_benches::{BenchResult, median};

use crate::{
    libraries::{command, install},
    line,
};

/// Libraries with a tape; autobwd first.
const LIBRARIES: [&str; 5] = ["autobwd", "PyTorch", "burn", "dfdx", "candle"];

/// The table: medians over the operators, each of `repeat` runs in turn.
pub(crate) fn table(root: &Path, repeat: usize) -> BenchResult<String> {
    let starts = install(root, "tape", &LIBRARIES);
    let mut runs: Vec<[Vec<f64>; 3]> = vec![Default::default(); LIBRARIES.len()];
    for _ in 0..repeat.max(1) {
        for (library, runs) in LIBRARIES.iter().zip(&mut runs) {
            let Some(start) = starts.get(library) else { continue };
            let arguments: &[_] = if *library == "autobwd" { &[] } else { &["tape"] };
            let mut command = command(start, arguments, 1);
            match line(command.current_dir(root)) {
                Ok(line) => {
                    eprintln!("{library}: {line}");
                    for (run, key) in runs.iter_mut().zip(["forward_ns", "backward_ns", "ns"]) {
                        run.push(line[key].as_f64().ok_or_else(|| format!("no `{key}` in {line}"))?);
                    }
                }
                Err(e) => eprintln!("{library}: {e}"),
            }
        }
    }
    let mut text = "| ns an operator | forward | backward | both |\n|---|---|---|---|\n".to_owned();
    for (library, runs) in LIBRARIES.iter().zip(runs).filter(|(_, runs)| !runs[0].is_empty()) {
        let [forward, backward, both] = runs.map(median);
        writeln!(text, "| {library} | {forward:.0} | {backward:.0} | {both:.0} |")?;
    }
    Ok(text)
}
