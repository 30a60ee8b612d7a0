//! Checks of samples, and operators with a mistake.

use autobwd::{
    Result,
    check::{CheckedSample, Sample, check_sample},
};

/// An operator whose kernel gets the input `$x` and the elements `$out`, of type `$T`.
macro_rules! kernel {
    ($op:ident, $name:literal, $grad:ident $(, $declared:ident $(= $value:ident)?)*, |$x:ident, $out:ident, $T:ident| $run:expr) => {
        #[register_op(name = $name, grad = $grad $(, $declared $(= $value)?)*)]
        pub(crate) struct $op<V = Var> {
            #[input]
            pub(crate) x: V,
            #[output(like = x)]
            pub(crate) out: V,
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, _: &Cx) -> Result<()> {
                with_float!(self.x, $T => {
                    let ($x, $out) = (&self.x, self.out.slice_mut::<$T>()?);
                    $run;
                });
                Ok(())
            }
        }
    };
}
pub(crate) use kernel;

/// Checks the first sample of an operator.
pub(crate) fn check_sample_of(op: &str) -> Result<CheckedSample> {
    let samples = autobwd_tests::linked_samples();
    check_sample(samples.iter().find(|sample| sample.op() == op).unwrap())
}

/// Asserts that the sample of an operator fails with all of `parts`.
#[track_caller]
pub(crate) fn assert_wrong(op: &str, parts: &[&str]) {
    let e = check_sample_of(op).expect_err(op).to_string();
    assert!(e.starts_with(&format!("`{op}`: ")), "{e}");
    for part in parts {
        assert!(e.contains(part), "{e}\nlacks\n{part}");
    }
}

/// Asserts that the check of each sample fails with the text.
#[track_caller]
pub(crate) fn assert_all_found(mistakes: Vec<(Sample, &str)>) {
    let mut wrong = vec![];
    for (sample, text) in mistakes {
        let said = check_sample(&sample).map_or_else(|e| e.to_string(), |_| "nothing is found".into());
        let is_named = said.starts_with(&format!("`{}`: ", sample.op()));
        if !said.contains(text) || !is_named || said.contains("autobwd bug") {
            wrong.push(format!("{}: {said}\nlacks\n{text}", sample.op()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
