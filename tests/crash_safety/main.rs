//! Processes that are killed, or that run out of disk or memory. The tests run this binary as a child process:
//! `child NAME ARGUMENTS` does the work of the child in place of the tests.

mod memory;
mod saving;
mod training;

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

use autobwd::Result;
use libtest_mimic::{Arguments, Trial};

/// The child process that does this work.
fn child(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().expect("a test has a path"));
    command.args(["child", name]).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |text: &str| text.parse::<u64>().expect("a number");
    match &arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["child", "save", folder] => saving::save_in_a_loop(Path::new(folder)),
        ["child", "train", path, steps, threads] => {
            training::train(Path::new(path), number(steps), number(threads) as usize)
        }
        ["child", "fill-disk", path] => training::save_to_a_full_disk(Path::new(path)),
        ["child", "loop", width] => memory::loop_until_memory_runs_out(number(width) as usize),
        _ => run_tests(),
    }
}

fn run_tests() -> ! {
    let trial = |name: &str, test: fn() -> Result<()>| Trial::test(name, move || Ok(test()?));
    let trials = vec![
        trial("killed_process_leaves_whole_files", saving::killed_process_leaves_whole_files),
        trial(
            "killed_runs_end_bit_identical_to_an_unbroken_run",
            training::killed_runs_end_bit_identical_to_an_unbroken_run,
        ),
        trial("changed_data_is_noticed", training::changed_data_is_noticed),
        #[cfg(unix)]
        trial("full_disk_leaves_the_last_checkpoint", training::full_disk_leaves_the_last_checkpoint),
        #[cfg(target_os = "linux")]
        trial("loop_that_exhausts_memory_is_an_error", memory::loop_that_exhausts_memory_is_an_error),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit()
}
