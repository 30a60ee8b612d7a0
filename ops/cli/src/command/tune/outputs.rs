//! The files of a fine-tuning: what a killed run leaves, and what it goes on with.

use std::{
    fs::{self, File},
    io::BufReader,
    path::{Path, PathBuf},
};

use autobwd::{
    Builder, DType, Program, Result, Tensor,
    exec::{Checkpoint, Monitor},
    tensor::{open_file, write_atomically},
    viewer::RunReport,
};
use autobwd_models::{StepReport, TuningRun};

use crate::terminal::{CommandFailure, CommandResult};

/// The largest log that is drawn, in bytes.
const LARGEST_LOG: u64 = 1 << 30;
/// The note of a checkpoint with the least loss on the evaluation data.
const BEST: &str = "best";
/// What a step logs, and what an evaluation logs.
const STEP_VALUES: [&str; 2] = ["loss", "learning_rate"];
const EVALUATION_VALUES: [&str; 1] = ["evaluation_loss"];

/// The files in the folder of the result.
pub(super) struct TuningFiles {
    checkpoint: PathBuf,
    logs: [PathBuf; 2],
    report: PathBuf,
}

/// What changes from step to step, besides the run.
pub(super) struct TuningState {
    steps: Monitor<File>,
    evaluations: Monitor<File>,
    /// The least loss on the evaluation data.
    pub(super) best: Option<f64>,
}

impl TuningFiles {
    /// The files of a run, which is new or goes on.
    ///
    /// # Errors
    /// A new run in the folder of an interrupted one, and the other way round.
    pub(super) fn of(folder: &Path, resume: bool) -> CommandResult<TuningFiles> {
        let files = TuningFiles {
            checkpoint: folder.join("checkpoint.safetensors"),
            logs: ["log.jsonl", "evaluation.jsonl"].map(|name| folder.join(name)),
            report: folder.join("report.html"),
        };
        let shown = folder.display();
        match (files.checkpoint.exists(), resume) {
            (true, false) => Err(CommandFailure::Failed(format!(
                "`{shown}` has a run that was interrupted: go on with --resume, or give another folder"
            ))),
            (false, true) => Err(CommandFailure::Failed(format!("`{shown}` has no run to go on with"))),
            _ => Ok(files),
        }
    }

    /// The state at the start, or after the last checkpoint.
    pub(super) fn start(&self, run: &mut TuningRun, resume: bool) -> Result<TuningState> {
        let programs = [scalars(&STEP_VALUES)?, scalars(&EVALUATION_VALUES)?];
        if !resume {
            return Ok(TuningState {
                steps: Monitor::create(&self.logs[0], &programs[0], &STEP_VALUES)?,
                evaluations: Monitor::create(&self.logs[1], &programs[1], &EVALUATION_VALUES)?,
                best: None,
            });
        }
        let checkpoint = run.resume(&self.checkpoint)?;
        let step = checkpoint.step();
        Ok(TuningState {
            steps: Monitor::resume(&self.logs[0], &programs[0], &STEP_VALUES, step)?,
            evaluations: Monitor::resume(&self.logs[1], &programs[1], &EVALUATION_VALUES, step)?,
            best: best(&checkpoint),
        })
    }

    /// Saves the state of the run.
    pub(super) fn save(&self, run: &TuningRun, state: &TuningState) -> Result<()> {
        let best = state.best.map(|loss| (BEST, format!("{:016x}", loss.to_bits())));
        run.save_checkpoint(&self.checkpoint, best.as_slice())
    }

    /// Draws the curves, and removes what only an interrupted run needs.
    pub(super) fn finish(&self) -> CommandResult {
        let mut report = RunReport::new().title("Fine-tuning");
        for (log, name) in self.logs.iter().zip(["steps", "evaluations"]) {
            let lines = open_file(log, LARGEST_LOG)?;
            if fs::read_to_string(log).is_ok_and(|text| text.lines().count() > 1) {
                report.add_run(name, BufReader::new(lines))?;
            }
        }
        write_atomically(&self.report, report.to_html()?.as_bytes())?;
        if self.checkpoint.exists() {
            fs::remove_file(&self.checkpoint).map_err(|e| {
                CommandFailure::Failed(format!("cannot remove `{}`: {e}", self.checkpoint.display()))
            })?;
        }
        Ok(())
    }
}

impl TuningState {
    pub(super) fn log(&mut self, report: &StepReport) -> Result<()> {
        let values = [report.loss, report.learning_rate].map(|x| Tensor::from_vec([], vec![x]));
        self.steps.record_fetched(report.step, &values.into_iter().collect::<Result<Vec<_>>>()?)
    }

    /// Measures the loss on the evaluation data, and keeps the parameters if it is the least one.
    pub(super) fn evaluate(&mut self, run: &mut TuningRun, step: u64, folder: &Path) -> Result<()> {
        let Some(loss) = run.evaluate()? else { return Ok(()) };
        self.evaluations.record_fetched(step, &[Tensor::from_vec([], vec![loss])?])?;
        if self.best.is_none_or(|best| loss < best) {
            self.best = Some(loss);
            run.save(folder)?;
        }
        Ok(())
    }
}

/// The values of a log, as a program that is fed them: the step of the model need not keep all its gradients for it.
fn scalars(names: &[&str]) -> Result<Program> {
    let net = Builder::new();
    for name in names {
        net.input(name, DType::F64, &[]).check()?;
    }
    Ok(net.program()?.clone())
}

/// The least loss in the notes of a checkpoint.
fn best(checkpoint: &Checkpoint) -> Option<f64> {
    let bits = u64::from_str_radix(checkpoint.note(BEST).ok()?, 16).ok()?;
    Some(f64::from_bits(bits))
}
