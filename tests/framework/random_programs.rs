//! Random programs: built gradients against central differences, and plans that fuse and reuse memory against fetching
//! every value.

use autobwd::{Backward, Builder, DType, Executor, Expr, Result, Scope, Tensor, append_backward, verify};
use autobwd_ops::{Init, Math, concat};

/// A small generator with the same numbers everywhere.
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A program of operators drawn one after the other, each on values drawn from all there are; its loss.
pub(super) fn program(numbers: &mut Numbers) -> Result<(Builder, Expr)> {
    let net = Builder::new();
    let mut values = vec![
        net.input("x", DType::F64, &[2, 3])?,
        net.parameter("v", DType::F64, &[2, 3], |w| Init::Uniform(-1.0, 1.0).emit(w, 1))?,
        net.parameter("w", DType::F64, &[2, 3], |w| Init::Uniform(-1.0, 1.0).emit(w, 2))?,
    ];
    let row = net.parameter("row", DType::F64, &[3], |w| Init::Uniform(-1.0, 1.0).emit(w, 3))?;
    let square = net.parameter("square", DType::F64, &[3, 3], |w| Init::Uniform(-1.0, 1.0).emit(w, 4))?;
    for _ in 0..3 + numbers.below(12) {
        let (a, b) =
            (values[numbers.below(values.len())].clone(), values[numbers.below(values.len())].clone());
        let new = match numbers.below(14) {
            0 => a.tanh()?,
            1 => a.sigmoid()?,
            2 => (&a * 0.7)?,
            3 => (&a + &b)?,
            4 => (&a - &b)?,
            5 => (&a * &b)?,
            6 => (&a / &(b.square()? + 2.0)?)?,
            7 => (&a + &row)?,
            8 => (&row * &a)?,
            9 => a.matmul(&square)?,
            10 => a.softmax(1)?,
            11 => (&a - &a.mean_over(&[])?)?,
            12 => {
                let pieces = concat(&[&a, &b], 1)?.split(&[3, 1, 2], 1)?;
                // The middle piece is used only sometimes.
                if numbers.below(2) == 0 { (&pieces[0] * &pieces[1])? } else { pieces[0].clone() }
            }
            _ => a.transpose(&[1, 0])?.reshape(&[2, 3])?,
        };
        values.push(if numbers.below(10) == 0 { new.detach()? } else { new });
    }
    let last = &values[values.len() - 1];
    let loss = (&last.square()?.mean()? + &values[numbers.below(values.len())].sum(&[])?)?;
    Ok((net, loss))
}

const PARAMETERS: [&str; 4] = ["v", "w", "row", "square"];

#[test]
fn built_gradients_are_the_derivatives() -> Result<()> {
    for seed in 0..150 {
        let mut numbers = Numbers(seed);
        let (net, loss) = program(&mut numbers)?;
        let frozen: Vec<&str> = PARAMETERS.into_iter().filter(|_| numbers.below(5) == 0).collect();
        let mut built = net.program().clone();
        let found =
            append_backward(&mut built, &loss.name(), &Backward { no_grad: &frozen, ..Default::default() })?;
        verify(&built)?;

        let (mut scope, mut executor) = (Scope::new(), Executor::with_threads(1));
        executor.run(&net.startup().program(), &mut scope, &[], &[])?;
        let x = Tensor::from_vec([2, 3], vec![0.3_f64, -0.8, 0.5, 1.1, -0.2, 0.9])?;
        let names: Vec<String> = found.pairs.iter().map(|(_, g)| built.name(*g).to_string()).collect();
        let fetches: Vec<&str> = names.iter().map(String::as_str).collect();
        let grads = executor.run(&built, &mut scope, &[("x", &x)], &fetches)?;
        for name in PARAMETERS {
            let parameter = built.expect_var(name)?;
            let pair = found.pairs.iter().position(|(p, _)| *p == parameter);
            assert!(pair.is_none() || !frozen.contains(&name));
            if frozen.contains(&name) {
                continue;
            }
            let mut numeric = vec![];
            for i in 0..scope.get(name)?.numel() {
                let at = scope.get(name)?.slice::<f64>()?[i];
                let mut side = |x_i: f64| -> Result<f64> {
                    scope.slice_mut::<f64>(name)?[i] = x_i;
                    executor.run(&net.program(), &mut scope, &[("x", &x)], &[&loss.name()])?[0].item()
                };
                numeric.push((side(at + 1e-5)? - side(at - 1e-5)?) / 2e-5);
                scope.slice_mut::<f64>(name)?[i] = at;
            }
            // `detach` cuts the backward part, not the differences: only parameters that it does not touch compare.
            let detached = net.program().to_string().contains("assign(");
            let scale = 1.0 + numeric.iter().fold(0.0_f64, |m, x| m.max(x.abs()));
            let built = pair.map_or(vec![0.0; numeric.len()], |i| grads[i].to_f64s());
            let worst = built.iter().zip(&numeric).map(|(b, n)| (b - n).abs() / scale).fold(0.0, f64::max);
            assert!(
                detached || worst < 1e-7,
                "seed {seed}, {name}: {built:?} {numeric:?}\n{}",
                net.program()
            );
        }
    }
    Ok(())
}

#[test]
fn fusing_and_reusing_memory_change_nothing() -> Result<()> {
    for seed in 0..150 {
        let (net, loss) = program(&mut Numbers(seed))?;
        let mut built = net.program().clone();
        append_backward(&mut built, &loss.name(), &Default::default())?;
        let mut scope = Scope::new();
        Executor::with_threads(1).run(&net.startup().program(), &mut scope, &[], &[])?;
        let x = Tensor::from_vec([2, 3], vec![0.3_f64, -0.8, 0.5, 1.1, -0.2, 0.9])?;
        // Fetching every value keeps each in memory of its own: nothing in registers, nothing in place.
        let written = built.root().ops.iter().flat_map(|op| op.writes());
        let names: Vec<String> = written.map(|v| built.name(v).to_string()).collect();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let apart = Executor::with_threads(1).run(&built, &mut scope, &[("x", &x)], &all)?;
        for threads in [1, 2] {
            for (name, value) in all.iter().zip(&apart).filter(|(n, _)| n.ends_with("@GRAD")) {
                let together =
                    Executor::with_threads(threads).run(&built, &mut scope, &[("x", &x)], &[name])?;
                assert_eq!(&together[0], value, "seed {seed}, {name}");
            }
        }
    }
    Ok(())
}
