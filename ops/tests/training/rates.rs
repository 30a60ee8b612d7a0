//! Schedules of the learning rate, plateaus and early stopping.

use autobwd::{Builder, Result, Scope, Tensor};
use autobwd_ops::{
    Math,
    optim::{EarlyStopping, Optimizer, Plateau, Schedule, Sgd, set_rate},
};

use crate::support::{elements, parameter, run, started};

fn rates<const N: usize>(schedule: &Schedule, steps: [u64; N]) -> [f64; N] {
    steps.map(|step| (schedule.rate(step) * 1e6).round() / 1e6)
}

#[test]
fn schedules_have_their_formulas() {
    assert_eq!(rates(&Schedule::constant(0.5), [0, 7]), [0.5, 0.5]);
    assert_eq!(rates(&Schedule::step(1.0, 0.5, 3), [0, 2, 3, 5, 6]), [1.0, 1.0, 0.5, 0.5, 0.25]);
    assert_eq!(rates(&Schedule::linear(1.0, 0.0, 4), [0, 1, 4, 9]), [1.0, 0.75, 0.0, 0.0]);
    assert_eq!(rates(&Schedule::cosine(1.0, 0.5, 4), [0, 2, 4, 5]), [1.0, 0.75, 0.5, 0.5]);
    let warm = Schedule::cosine(1.0, 0.0, 4).warmup(2);
    assert_eq!(rates(&warm, [0, 1, 2, 4, 6]), [0.5, 1.0, 1.0, 0.5, 0.0]);
    let two = Schedule::constant(1.0).then(2, Schedule::linear(0.5, 0.0, 2));
    assert_eq!(rates(&two, [0, 1, 2, 3, 4]), [1.0, 1.0, 0.5, 0.25, 0.0]);
    // Without steps, a schedule has ended.
    assert_eq!(rates(&Schedule::cosine(1.0, 0.25, 0).warmup(0), [0]), [0.25]);
    assert_eq!(rates(&Schedule::step(1.0, 0.5, 0), [1]), [0.5]);
}

#[test]
fn schedule_sets_the_rate_of_a_step() -> Result<()> {
    let net = Builder::new();
    Sgd { rate: 9.0 }.minimize(&parameter(&net, "w", 1, 0.0).sum(&[]))?.complete()?;
    let mut scope = started(&net)?;
    let schedule = Schedule::step(1.0, 0.5, 1);
    for step in 0..3 {
        schedule.set(&mut scope, "learning_rate_0", step)?;
        run(&net, &mut scope, &[], &[])?;
    }
    assert_eq!(elements(&scope, "w"), [-1.75]);
    Ok(())
}

#[test]
fn only_learning_rates_are_set() -> Result<()> {
    let mut scope = Scope::new();
    scope.set("rate", Tensor::from_vec([1], vec![1.0_f64])?);
    scope.set("w", Tensor::from_vec([2], vec![1.0_f32; 2])?);
    scope.set("count", Tensor::from_vec([1], vec![1_i64])?);
    set_rate(&mut scope, "rate", 0.25)?;
    assert_eq!(scope.get("rate")?.item()?, 0.25);
    for (name, text) in [
        ("w", "`w` is float32 [2], not a learning rate: one floating point number"),
        ("count", "`count` is int64 [1], not a learning rate: one floating point number"),
        ("rat", "the scope has no `rat`; did you mean `rate`?"),
    ] {
        assert_eq!(set_rate(&mut scope, name, 0.5).unwrap_err().to_string(), text);
    }
    Ok(())
}

#[test]
fn plateau_lowers_the_rate_and_survives_a_restart() -> Result<()> {
    let new = || Plateau::new(1.0).factor(0.5).patience(1).threshold(0.1).min_rate(0.2);
    let losses = [10.0, 9.5, 9.2, 8.0, f64::NAN, 8.0, 8.0, 8.0, 8.0, 8.0];
    let mut plateau = new();
    let rates: Vec<f64> = losses.iter().map(|loss| plateau.observe(*loss)).collect();
    assert_eq!(rates, [1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25, 0.2, 0.2, 0.2]);
    let mut scope = Scope::new();
    scope.set("rate", Tensor::from_vec([1], vec![1.0_f32])?);
    plateau.set(&mut scope, "rate")?;
    assert_eq!(elements(&scope, "rate"), [0.2]);

    let mut first = new();
    losses[..5].iter().for_each(|loss| _ = first.observe(*loss));
    let mut second = new();
    second.restore(&first.state()?)?;
    let resumed: Vec<f64> = losses[5..].iter().map(|loss| second.observe(*loss)).collect();
    assert_eq!(resumed, rates[5..]);
    let e = second.restore(&Tensor::from_vec([1], vec![1.0_f64])?).unwrap_err();
    assert_eq!(e.message(), "a state of shape [3] and dtype float64 is needed, not float64 [1]");
    Ok(())
}

#[test]
fn training_stops_without_improvement() -> Result<()> {
    let mut stopping = EarlyStopping::new(2).min_delta(0.5);
    let observed: Vec<(bool, bool)> =
        [-1.0, -1.25, -2.0, f64::NAN, -2.5].map(|loss| (stopping.observe(loss), stopping.is_over())).into();
    assert_eq!(observed, [(true, false), (false, false), (true, false), (false, false), (false, true)]);
    let mut resumed = EarlyStopping::new(2).min_delta(0.5);
    resumed.restore(&stopping.state()?)?;
    assert_eq!((resumed, stopping.best()), (stopping.clone(), -2.0));
    Ok(())
}
