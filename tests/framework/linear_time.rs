//! Work that grows with the number of names or operators, not with its square.

use autobwd::{
    Backward, Builder, DType, New, Result, Scope, Tensor, append_backward, backward::Recompute, emit,
    operators::Sum,
};
use autobwd_ops::{Init, Math};

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
    let loss = emit(Sum { x: sines.iter().map(Into::into).collect(), out: New }).out.mean();
    let mut program = net.program()?.clone();
    let backward = Backward { recompute: Recompute::auto(1 << 30, &[]), ..Backward::default() };
    let before = thread_time();
    append_backward(&mut program, &loss.name(), &backward)?;
    Ok(thread_time() - before)
}

#[cfg(target_os = "linux")]
#[test]
fn recomputation_for_many_readers_takes_linear_time() -> Result<()> {
    let few = time_to_recompute(1_000)?;
    let many = time_to_recompute(8_000)?;
    assert!(many < 30 * few, "{} ms, and {} ms for eight times as many", few / 1_000_000, many / 1_000_000);
    Ok(())
}

/// The time of errors about 100 names that a scope of many long names lacks.
#[cfg(target_os = "linux")]
fn time_of_missing_names(count: usize) -> Result<u64> {
    let (mut scope, name) = (Scope::new(), |i: usize| format!("{}{i:05}", "w".repeat(95)));
    for i in 0..count {
        scope.set(&name(i), Tensor::scalar(0.0_f32)?);
    }
    let before = thread_time();
    for i in 0..100 {
        let e = scope.get(&name(99_000 + i)).unwrap_err().to_string();
        assert!(e.contains("; did you mean `"), "{e}");
    }
    Ok(thread_time() - before)
}

#[cfg(target_os = "linux")]
#[test]
fn suggestions_compare_a_bounded_number_of_names() -> Result<()> {
    let (few, many) = (time_of_missing_names(1_000)?, time_of_missing_names(20_000)?);
    assert!(many < 5 * few, "{} ms, and {} ms among 20 times as many", few / 1_000_000, many / 1_000_000);
    Ok(())
}
