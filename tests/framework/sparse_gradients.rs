//! Sparse gradients: their sources, their readers, and equality with dense gradients.

use autobwd::{
    Arg, Backward, Buf, Builder, Cx, DType, ErrorKind, Executor, Expr, Feed, Infer, Kernel, Meta, New,
    NoGrad, Program, Result, Scope, Session, Tensor, Var, VarDesc, append_backward,
    backward::{hessian_vector_product, jacobian},
    emit, gradients,
    program::VarKind,
    register_op, verify,
};
use autobwd_ops::{
    Init, Math,
    activation::Tanh,
    embedding::{LookupTableV2, LookupTableV2Grad},
    nn::Embedding,
    optim::{Adam, Momentum, Optimizer, Sgd},
    sum::Sum,
    update,
};

const ROWS: usize = 11;
const WIDTH: usize = 3;

/// Two look-ups in one table, `embedding_0.w`, the second with separate indices and padding index 2; the loss weights
/// all elements differently. With `dense_too`, every row contributes as well.
fn model(sparse: bool, dense_too: bool) -> (Builder, Expr) {
    let net = Builder::new();
    let table = Embedding::builder(&net, ROWS, WIDTH).dtype(DType::F64).padding(2).seed(5);
    let table = if sparse { table.sparse() } else { table }.build();
    let words = net.input("words", DType::I64, &[-1, 2]);
    let others = net.input("others", DType::I64, &[-1]);
    let first = table.forward(&words).tanh().square().sum(&[]);
    let second = table.forward(&others).exp().sum(&[]);
    let mut loss = &first + &second * 0.3;
    if dense_too {
        loss = &loss + table.weight.square().sum(&[]);
    }
    (net, loss)
}

fn ids(dims: &[usize], numbers: &[i64]) -> Tensor {
    Tensor::from_vec(dims, numbers.to_vec()).unwrap()
}

/// Feeds of each step: indices repeated within a look-up and across, padding, all equal, and none. Rows 9 and 10 never
/// occur.
fn steps() -> [(Tensor, Tensor); 5] {
    [
        (ids(&[2, 2], &[0, 4, 4, 2]), ids(&[3], &[4, 8, 0])),
        (ids(&[1, 2], &[7, 7]), ids(&[2], &[7, 7])),
        (ids(&[0, 2], &[]), ids(&[0], &[])),
        (ids(&[1, 2], &[2, 2]), ids(&[1], &[2])),
        (ids(&[3, 2], &[1, 3, 5, 6, 3, 1]), ids(&[4], &[2, 3, 2, 5])),
    ]
}

/// The values in the scope after `steps` steps, by name.
fn trained(
    optimizer: &dyn Optimizer,
    sparse: bool,
    dense_too: bool,
    count: usize,
) -> Result<Vec<(String, Vec<f64>)>> {
    let (net, loss) = model(sparse, dense_too);
    optimizer.minimize(&loss)?.complete()?;
    verify(&*net.program()?)?;
    let (mut executor, mut scope) = (Executor::new(), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    for (words, others) in &steps()[..count] {
        executor.run(&net.program()?, &mut scope, &[("words", words), ("others", others)], &[])?;
    }
    Ok(scope.iter().map(|(name, value)| (name.to_string(), value.to_f64s())).collect())
}

/// Momentum with a scaled gradient and weight decay.
struct Decayed;
impl Optimizer for Decayed {
    fn learning_rate(&self) -> f32 {
        0.1
    }
    fn update(&self, parameter: &Expr, gradient: &Expr, learning_rate: &Expr) -> Result<()> {
        let dims = parameter.dims().known().unwrap_or_default();
        let velocity = parameter
            .builder()
            .persistable("velocity", parameter.dtype(), &dims, |v| Init::Constant(0.5).emit(v, 0));
        emit(update::MomentumOp {
            param: parameter.into(),
            grad: gradient.into(),
            velocity: (&velocity).into(),
            learning_rate: learning_rate.into(),
            param_out: parameter.into(),
            velocity_out: (&velocity).into(),
            mu: 0.8,
            use_nesterov: true,
            regularization_method: update::Regularization::L2Decay,
            regularization_coeff: 0.05,
            rescale_grad: 0.5,
            lazy_mode: false,
        })
        .param_out
        .check()
        .map(drop)
    }
}

#[test]
fn training_equals_training_with_dense_gradients() -> Result<()> {
    let momentum = |nesterov| Momentum { rate: 0.1, momentum: 0.9, nesterov, lazy: false };
    let optimizers: [(&str, &dyn Optimizer); 5] = [
        ("sgd", &Sgd { rate: 0.1 }),
        ("momentum", &momentum(false)),
        ("nesterov", &momentum(true)),
        ("decayed", &Decayed),
        ("adam", &Adam::new(0.1)),
    ];
    for (name, optimizer) in optimizers {
        for dense_too in [false, true] {
            let sparse = trained(optimizer, true, dense_too, 5)?;
            let dense = trained(optimizer, false, dense_too, 5)?;
            assert_eq!(sparse.len(), dense.len());
            for ((value, sparse), (_, dense)) in sparse.iter().zip(&dense) {
                for (a, b) in sparse.iter().zip(dense) {
                    assert!((a - b).abs() <= 1e-14 * (1.0 + b.abs()), "{name}, {value}: {a} and {b}");
                }
            }
            assert_ne!(sparse, trained(optimizer, true, dense_too, 0)?, "{name} trains nothing");
        }
    }
    Ok(())
}

#[test]
fn lazy_updates_change_only_their_rows() -> Result<()> {
    let momentum = |lazy| Momentum { rate: 0.1, momentum: 0.9, nesterov: true, lazy };
    let adam = |lazy| Adam { lazy, ..Adam::new(0.1) };
    let optimizers: [[&dyn Optimizer; 2]; 2] =
        [[&momentum(true), &momentum(false)], [&adam(true), &adam(false)]];
    for [lazy, eager] in optimizers {
        let history: Vec<_> = (0..=5).map(|n| trained(lazy, true, false, n)).collect::<Result<_>>()?;
        for (n, (words, others)) in steps().iter().enumerate() {
            let occurs: Vec<f64> = words.to_f64s().into_iter().chain(others.to_f64s()).collect();
            for ((name, before), (_, after)) in history[n].iter().zip(&history[n + 1]) {
                if before.len() != ROWS * WIDTH {
                    continue;
                }
                for row in 0..ROWS {
                    let of = |values: &[f64]| values[row * WIDTH..][..WIDTH].to_vec();
                    // The padding row has no gradient: it does not occur.
                    let changes = row != 2 && occurs.contains(&(row as f64));
                    assert_eq!(of(before) != of(after), changes, "{name}, row {row}, step {n}");
                }
            }
        }
        // In the first step, there is no difference, to the bit, since there is no history.
        assert_eq!(history[1], trained(eager, true, false, 1)?);
        assert_ne!(history[2], trained(eager, true, false, 2)?);
        // A dense gradient holds every row.
        let [lazy, eager] = [lazy, eager].map(|optimizer| trained(optimizer, false, false, 5));
        assert_eq!(lazy?, eager?);
    }
    Ok(())
}

/// A large table and many indices: work is split.
fn large(sparse: bool, threads: usize) -> Result<(Vec<f64>, Session)> {
    let net = Builder::new();
    let table = Embedding::builder(&net, 40_000, 8).seed(5);
    let table = if sparse { table.sparse() } else { table }.build();
    let words = net.input("words", DType::I64, &[-1]);
    Adam::new(0.1).minimize(&table.forward(&words).square().mean())?.complete()?;
    let (mut executor, mut scope) = (Executor::with_threads(threads), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let numbers = (0..30_000_i64).map(|i| i * i * 31 % 39_989).collect();
    let numbers = Tensor::from_vec([30_000], numbers)?;
    let mut session = executor.prepare(&net.program()?, &mut scope, &[("words", numbers.meta())], &[])?;
    for _ in 0..2 {
        session.feed("words", &numbers)?;
        session.run(&mut scope)?;
    }
    Ok((scope.get("embedding_0.w")?.to_f64s(), session))
}

#[test]
fn parts_of_large_tables_fit_together() -> Result<()> {
    let (sparse, dense) = (large(true, 1)?.0, large(false, 1)?.0);
    assert_eq!(sparse, dense);
    assert_eq!(sparse, large(true, 3)?.0);
    Ok(())
}

#[test]
fn step_takes_memory_only_for_its_rows() -> Result<()> {
    let session = |sparse| -> Result<Session> {
        let net = Builder::new();
        let table = Embedding::builder(&net, 100_000, 8);
        let table = if sparse { table.sparse() } else { table }.build();
        let words = net.input("words", DType::I64, &[-1]);
        let looks = table.forward(&words).tanh() + table.forward(&words);
        Adam::new(0.1).minimize(&looks.mean())?.complete()?;
        let mut scope = Scope::new();
        let mut executor = Executor::with_threads(1);
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        executor.prepare(&net.program()?, &mut scope, &[("words", Meta::new(DType::I64, [50]))], &[])
    };
    let whole = 100_000 * 8 * size_of::<f32>();
    let rows = |n: usize| (n * size_of::<i64>()).next_multiple_of(64) + n * 8 * size_of::<f32>();
    assert!(session(false)?.peak_bytes() >= 2 * whole);
    let sparse = session(true)?;
    // During accumulation, there are two gradients of 50 rows, and room for 100; and the initial gradient 1, which is
    // kept.
    assert_eq!(sparse.live_bytes(), 2 * rows(50).next_multiple_of(64) + rows(100).next_multiple_of(64) + 64);
    assert!(sparse.peak_bytes() < whole / 100, "{}", sparse.peak_bytes());
    Ok(())
}

const GRADIENT: &str = "embedding_0.w@GRAD";

/// A program with the sparse gradient of the table, and its feeds.
fn fetched() -> Result<(Program, Vec<(&'static str, Tensor)>)> {
    let (net, loss) = model(true, false);
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    let (words, others) = steps()[0].clone();
    Ok((program, vec![("words", words), ("others", others)]))
}

fn kind(program: &Program, name: &str) -> VarKind {
    program.root().vars.get(&program.find(name).unwrap()).unwrap().kind
}

fn scope() -> Scope {
    let mut scope = Scope::new();
    let table = (0..ROWS * WIDTH).map(|i| (i as f64).sin()).collect();
    scope.set("embedding_0.w", Tensor::from_vec([ROWS, WIDTH], table).unwrap());
    scope
}

#[test]
fn sparse_gradients_are_fetched_sparse_or_dense() -> Result<()> {
    let (program, feeds) = fetched()?;
    let mut scope = scope();
    let metas: Vec<_> = feeds.iter().map(|(name, t)| (*name, t.meta())).collect();
    let mut session = Executor::new().prepare(&program, &mut scope, &metas, &[GRADIENT, GRADIENT])?;
    feeds.iter().try_for_each(|(name, t)| session.feed(name, t))?;
    session.run(&mut scope)?;
    let rows = session.rows::<f64>(GRADIENT)?;
    assert_eq!((rows.height(), rows.width(), rows.indices()), (ROWS, WIDTH, &[0, 4, 8][..]));
    let whole = session.fetch(GRADIENT)?;
    assert_eq!(whole.dims(), [ROWS, WIDTH]);
    for row in 0..ROWS {
        let own = rows.iter().find(|(number, _)| *number == row).map(|(_, values)| values);
        assert_eq!(whole.slice::<f64>()?[row * WIDTH..][..WIDTH], *own.unwrap_or(&[0.0; WIDTH]));
    }
    // The second look-up alone: d(0.3 · exp(w)) of row 8.
    let expected = scope.get("embedding_0.w")?.slice::<f64>()?[8 * WIDTH].exp() * 0.3;
    assert!((rows.values()[2 * WIDTH] - expected).abs() < 1e-15);

    let e = session.rows::<f32>(GRADIENT).unwrap_err();
    assert_eq!(e.to_string(), "`embedding_0.w@GRAD` holds rows of float64 [11, 3], not rows of float32");
    let e = session.slice::<f64>(GRADIENT).unwrap_err();
    assert!(
        e.to_string().contains("is sparse; use `rows` for its rows, or `fetch` for the dense tensor"),
        "{e}"
    );
    assert!(session.item(GRADIENT).is_err());
    Ok(())
}

#[test]
fn programs_with_rows_print_and_save() -> Result<()> {
    let (program, _) = fetched()?;
    // Computed variables are not declared in the text.
    let mut bare = program.clone();
    bare.root_mut().ops.clear();
    let text = bare.to_string();
    assert!(text.contains("embedding_0.w@GRAD: rows of float64 [11, 3]"), "{text}");
    let loaded = Program::from_json(&program.to_json())?;
    assert_eq!(loaded, program);
    assert_eq!(kind(&loaded, GRADIENT), VarKind::SelectedRows);
    assert_eq!(kind(&loaded, "embedding_0.w@GRAD@RENAME@0"), VarKind::SelectedRows);
    verify(&loaded)
}

#[test]
fn sparse_plus_dense_gradient_is_dense() -> Result<()> {
    let (net, loss) = model(true, true);
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    assert_eq!(kind(&program, GRADIENT), VarKind::Tensor);
    let part = |i: usize| kind(&program, &format!("embedding_0.w@GRAD@RENAME@{i}"));
    let parts: Vec<VarKind> = (0..3).map(part).collect();
    assert_eq!(parts.iter().filter(|kind| **kind == VarKind::SelectedRows).count(), 2);
    verify(&program)
}

#[test]
fn operators_without_sparse_inputs_are_refused() -> Result<()> {
    // The table is computed: its gradient is read by an operator without support for rows.
    let net = Builder::new();
    let w = net.parameter("w", DType::F32, &[4, 2], |w| Init::Constant(1.0).emit(w, 0));
    let ids = net.input("ids", DType::I64, &[3]);
    let looked_up = emit(LookupTableV2 {
        ids: (&ids).into(),
        w: (&w.tanh()).into(),
        out: New,
        padding_idx: -1,
        is_sparse: true,
    });
    let loss = looked_up.out.mean();
    let mut program = net.program()?.clone();
    let e = append_backward(&mut program, &loss.name(), &Backward::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Shape);
    for part in ["operator `tanh_grad`", "`Out@GRAD`: a dense tensor is needed, not rows of float32 [4, 2]"] {
        assert!(e.to_string().contains(part), "{e}");
    }
    assert_eq!(program, *net.program()?);

    // By hand, too.
    let (_, loss) = model(true, false);
    let (w, gradient) = Sgd { rate: 0.1 }.minimize(&loss)?.complete()?.remove(0);
    let e = gradient.tanh().check().unwrap_err();
    assert!(e.to_string().contains("`X`: a dense tensor is needed, not rows of float64 [11, 3]"), "{e}");
    let e = emit(Tanh { x: (&w).into(), out: (&gradient).into() }).out.check().unwrap_err();
    assert!(e.to_string().contains("but `embedding_0.w@GRAD` is rows of float64 [11, 3]"), "{e}");
    let (net, loss) = model(true, false);
    let (_, gradient) = Sgd { rate: 0.1 }.minimize(&loss)?.complete()?.remove(0);
    let other = net.input("other", DType::F64, &[ROWS as i64, 2]);
    let e = emit(Sum { x: vec![(&gradient).into(), (&other).into()], out: New }).out.check().unwrap_err();
    assert!(e.to_string().contains("`X`: shape [11, 2] does not match [11, 3]"), "{e}");
    // Only the shape is needed here.
    let zeros = emit(autobwd_ops::fill::FillZerosLike { x: (&gradient).into(), out: New }).out;
    assert_eq!(zeros.to_string(), format!("{}: float64 [11, 3]", zeros.name()));
    Ok(())
}

#[test]
fn sparse_gradients_are_neither_fed_nor_persisted() -> Result<()> {
    let (mut program, feeds) = fetched()?;
    let whole = Tensor::zeros(DType::F64, &[ROWS, WIDTH])?;
    let mut feeds: Vec<(&str, &dyn Feed)> = feeds.iter().map(|(name, t)| (*name, t as _)).collect();
    feeds.push((GRADIENT, &whole));
    let e = Executor::new().run(&program, &mut scope(), &feeds, &[GRADIENT]).unwrap_err();
    assert_eq!(e.to_string(), "`embedding_0.w@GRAD` cannot be fed: it is not a dense tensor");
    feeds.pop();

    let var = program.find(GRADIENT).unwrap();
    let desc = program.root().vars.get(&var).unwrap().clone();
    program.root_mut().vars.insert(var, VarDesc { persistable: true, ..desc.clone() });
    let e = Executor::new().run(&program, &mut scope(), &feeds, &[]).unwrap_err();
    let text = "but `embedding_0.w@GRAD` is kept in the scope as a dense tensor";
    assert!(e.to_string().contains(text), "{e}");

    // Nor does a program run if its declarations contradict its operators.
    program.root_mut().vars.insert(var, VarDesc { kind: VarKind::Tensor, ..desc });
    let text = "`Out` is rows of float64 [11, 3], but `embedding_0.w@GRAD` is declared";
    for e in [
        Executor::new().run(&program, &mut scope(), &feeds, &[GRADIENT]).unwrap_err(),
        verify(&program).unwrap_err(),
    ] {
        assert!(e.to_string().contains(text), "{e}");
    }
    Ok(())
}

#[test]
fn gradients_go_on_through_rows() -> Result<()> {
    let second = |sparse| -> Result<Vec<Tensor>> {
        let (net, loss) = model(sparse, false);
        net.input("v", DType::F64, &[ROWS as i64, WIDTH as i64]);
        let (mut program, w) = (net.program()?.clone(), ["embedding_0.w"]);
        let product =
            hessian_vector_product(&mut program, &loss.name(), &[(w[0], "v")], &Default::default())?[0]
                .unwrap();
        let again = gradients(&mut program, &[GRADIENT], &w, &Default::default())?.pairs[0].1;
        verify(&program)?;
        let names = [product, again].map(|var| program.name(var));
        let (words, others) = steps()[0].clone();
        let v = Tensor::from_vec([ROWS, WIDTH], (0..ROWS * WIDTH).map(|i| i as f64).collect())?;
        let feeds: [(&str, &dyn Feed); 3] = [("words", &words), ("others", &others), ("v", &v)];
        Executor::new().run(&program, &mut scope(), &feeds, &names)
    };
    let (sparse, dense) = (second(true)?, second(false)?);
    assert_eq!(sparse, dense);
    assert!(sparse.iter().all(|tensor| tensor.to_f64s().iter().any(|x| *x != 0.0)));

    // Jacobians need dense tensors.
    let (net, loss) = model(true, false);
    let e = jacobian(&mut net.program()?.clone(), &loss.name(), &["embedding_0.w"], &Default::default())
        .unwrap_err();
    let text = "`X`: a dense tensor is needed, not rows of float64 [11, 3]";
    assert!(e.to_string().contains(text), "{e}");
    Ok(())
}

#[test]
fn overwritten_sparse_gradients_are_dropped() -> Result<()> {
    let net = Builder::new();
    let ids = net.input("ids", DType::I64, &[2]);
    let part = |name: &str, dims: &[usize]| {
        net.parameter(name, DType::F64, dims, |w| Init::Constant(1.0).emit(w, 0))
    };
    let (w, a, b) = (part("w", &[4, 3]), part("a", &[2, 3]), part("b", &[2, 3]));
    let look = |dout: &Expr, dw: Arg| {
        let (ids, w, dout) = (Arg::from(&ids), Arg::from(&w), dout.into());
        Ok(emit(LookupTableV2Grad { ids, w, dout, dw, padding_idx: -1, is_sparse: true }).dw)
    };
    let rows: Result<Expr> = look(&a, New);
    let rows = rows.and_then(|rows| look(&b, Arg::from(&rows)))?;
    let out = emit(Sum { x: vec![(&rows).into(), (&w).into()], out: New }).out;
    let mut program = net.program()?.clone();
    let found = gradients(&mut program, &[&out.name()], &["a", "b"], &Default::default())?;
    assert_eq!(found.entries().iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
    Ok(())
}

#[test]
fn updates_may_write_elsewhere() -> Result<()> {
    let (net, loss) = model(true, false);
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    net.set_program(program);
    let (w, gradient) = (net.expr("embedding_0.w"), net.expr(GRADIENT));
    let rate = net.input("rate", DType::F64, &[-1]);
    let updated = emit(update::SgdOp {
        param: (&w).into(),
        learning_rate: (&rate).into(),
        grad: (&gradient).into(),
        param_out: New,
    });
    let (words, others) = steps()[0].clone();
    let run = |rate: &[f64]| {
        let rate = Tensor::from_vec([rate.len()], rate.to_vec())?;
        let feeds: [(&str, &dyn Feed); 3] = [("words", &words), ("others", &others), ("rate", &rate)];
        let fetches = [gradient.name(), updated.param_out.name()];
        Executor::new().run(&net.program()?, &mut scope(), &feeds, &fetches.each_ref().map(String::as_str))
    };
    let (values, w) = (run(&[0.5])?, scope());
    let expected = w.get("embedding_0.w")?.to_f64s();
    let expected = expected.iter().zip(values[0].to_f64s()).map(|(w, dw)| w - 0.5 * dw);
    assert_eq!(values[1].to_f64s(), expected.collect::<Vec<_>>());
    // The formula accepts one rate per column; rows do not.
    let e = run(&[0.5, 0.5, 0.5]).unwrap_err();
    assert!(e.to_string().contains("`LearningRate`: one element is needed, not float64 [3]"), "{e}");
    Ok(())
}

/// Reads rows as if they were a dense tensor.
#[register_op(grad = NoGrad)]
pub(crate) struct Careless<V = Var> {
    #[input(sparse)]
    x: V,
    #[output]
    out: V,
}
impl Infer for Careless<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Careless<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        assert!(self.x.bytes().is_err() && self.out.copy_from(&self.x).is_err());
        assert!(self.x.rows::<f32>().is_err() && self.x.rows_mut::<f64>().is_err());
        assert!(self.out.rows::<f64>().is_err() && self.out.rows_mut::<f64>().is_err());
        self.out.slice_mut::<f64>()?.copy_from_slice(self.x.slice()?);
        Ok(())
    }
}

#[test]
fn sparse_gradients_are_never_read_as_dense() -> Result<()> {
    let (net, loss) = model(true, false);
    let (_, gradient) = Sgd { rate: 0.1 }.minimize(&loss)?.complete()?.remove(0);
    let out = emit(Careless { x: (&gradient).into(), out: New }).out;
    let (words, others) = steps()[0].clone();
    let mut scope = scope();
    scope.set("learning_rate_0", Tensor::from_vec([1], vec![0.1])?);
    let feeds: [(&str, &dyn Feed); 2] = [("words", &words), ("others", &others)];
    let e = Executor::new().run(&net.program()?, &mut scope, &feeds, &[&out.name()]).unwrap_err();
    let text = "`X` holds rows of a tensor; the kernel must use `rows` or `rows_mut`";
    assert!(e.to_string().contains(text), "{e}");
    Ok(())
}
