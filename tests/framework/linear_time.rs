//! Work that grows with the number of names or operators, not with its square.

use autobwd::{Backward, Builder, DType, Result, append_backward, backward::Recompute, emit, operators::Sum};
use autobwd_core::error::did_you_mean;
use autobwd_ops::{Init, Math};

#[test]
fn suggestions_compare_a_bounded_number_of_names() {
    let known: Vec<String> = (0..20_000).map(|i| format!("{}{i:05}", "w".repeat(95))).collect();
    let mut compared = 0;
    let hint = did_you_mean(
        &known[7].replace('7', "8"),
        known.iter().map(|name| {
            compared += 1;
            name.as_str()
        }),
    );
    assert!(compared < 40, "{compared}");
    assert!(hint.starts_with("; did you mean `"), "{hint}");
    // Names of other lengths cost nothing.
    let short = std::iter::repeat_n("b", 100_000).chain(["learning_rate_0"]);
    assert_eq!(did_you_mean("learning_rate_1", short), "; did you mean `learning_rate_0`?");
}

/// The time that this thread has run, in nanoseconds.
#[cfg(target_os = "linux")]
fn thread_time() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split_whitespace().next().unwrap().parse().unwrap()
}

/// The time to choose what to recompute for a loss that reads one parameter `readers` times.
#[cfg(target_os = "linux")]
fn time_to_recompute(readers: usize) -> Result<u64> {
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[4], |w| Init::Constant(1.0).emit(w, 0));
    let sines: Vec<_> = (0..readers).map(|_| w.sin()).collect();
    let loss = emit(Sum { x: sines.iter().map(Into::into).collect(), out: autobwd::New }).out.mean();
    let mut program = net.program()?.clone();
    let backward = Backward { recompute: Recompute::auto(1 << 30, &[]), ..Backward::default() };
    let before = thread_time();
    append_backward(&mut program, &loss.name(), &backward)?;
    Ok(thread_time() - before)
}

#[cfg(target_os = "linux")]
#[test]
fn recomputation_of_many_readers_of_one_value_takes_linear_time() -> Result<()> {
    let few = time_to_recompute(1_000)?;
    let many = time_to_recompute(8_000)?;
    assert!(many < 30 * few, "{} ms, and {} ms for eight times as many", few / 1_000_000, many / 1_000_000);
    Ok(())
}
