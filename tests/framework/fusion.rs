//! Fused kernels: which operators are fused, and that fusion changes no bit.

use autobwd::{
    Arg, Attr, Backward, Buf, Builder, Cx, DType, Dims, Executor, Expr, Feed, Kernel, Meta, New, NoGrad,
    OpDesc, OpInfoMap, Program, Result, Scope, Session, Tensor, Var, VarDesc, append_backward, emit,
    op::{AttrType, Decompose, GradKind, OpInfo, Parts, Peephole},
    register_op,
    tensor::Bool,
};
use autobwd_ops::{
    Math,
    activation::Scale,
    compare::{Equal, GreaterEqual, GreaterThan, LessEqual, LessThan, NotEqual},
    fill::FillConstant,
    logic::{LogicalAnd, LogicalNot, LogicalOr, LogicalXor, Where},
    optim::{Optimizer, Sgd},
    reduce::Mean,
    shape::{Assign, Cast},
};

use crate::support::programs::{float_parameter as parameter, parameter_of};

/// The session of a program without feeds, its parameters initialised.
fn session(net: &Builder, fetches: &[&str]) -> Result<(Session, Scope)> {
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    let session = Executor::with_threads(1).prepare(&net.program()?, &mut scope, &[], fetches)?;
    Ok((session, scope))
}

#[test]
fn elementwise_training_step_is_one_fused_kernel() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[1000]);
    let loss = (w.tanh() * 1.01 + &w).tanh().sum(&[]);
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    // The rate is in the scope; the initial gradient 1 is computed once.
    let (session, _) = session(&net, &[&loss.name()])?;
    assert_eq!(session.instruction_count(), 1, "{}", net.program()?);
    Ok(())
}

#[test]
fn operators_are_fused_unless_a_lifetime_grows() -> Result<()> {
    let net = Builder::new();
    let (w, square) = (parameter(&net, "w", &[3, 3]), parameter(&net, "square", &[3, 3]));
    let h = w.tanh();
    let product = square.matmul(&square);
    // `h` is not needed later: waiting saves no memory.
    let late = h.exp();
    let instructions =
        |fetches: &[&str]| Ok::<_, autobwd::Error>(session(&net, fetches)?.0.instruction_count());
    assert_eq!(instructions(&[&product.name(), &late.name()])?, 2);
    // If `h` is kept, computing `late` early would only extend its lifetime.
    assert_eq!(instructions(&[&product.name(), &late.name(), &h.name()])?, 3);
    Ok(())
}

#[test]
fn sums_and_means_run_with_what_they_add_up() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[300, 500]);
    let h = w.tanh();
    let fetched = [h.sum(&[]), h.mean(), h.sum(&[0]), (&h + &h * 2.0).sum(&[1])];
    let names: Vec<String> = fetched.iter().map(Expr::name).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (mut all, mut scope) = session(&net, &names)?;
    assert_eq!(all.instruction_count(), 1, "{}", net.program()?);
    all.run(&mut scope)?;
    // In f64, one after the other.
    let w = scope.get("w")?.slice::<f32>()?.to_vec();
    let h: Vec<f64> = w.iter().map(|w| f64::from(*w).tanh()).collect();
    let near = |got: f64, expected: f64| assert!((got - expected).abs() < 2e-3, "{got} {expected}");
    near(all.item(names[0])?, h.iter().sum());
    near(all.item(names[1])?, h.iter().sum::<f64>() / h.len() as f64);
    for (column, got) in all.slice::<f32>(names[2])?.iter().enumerate() {
        near((*got).into(), h.iter().skip(column).step_by(500).sum());
    }
    for (row, got) in all.slice::<f32>(names[3])?.iter().enumerate() {
        near((*got).into(), h[row * 500..][..500].iter().sum::<f64>() * 3.0);
    }
    // Each alone: the same bits.
    for name in &names {
        let (mut one, mut scope) = session(&net, &[name])?;
        one.run(&mut scope)?;
        assert_eq!(one.fetch(name)?, all.fetch(name)?, "{name}");
    }
    Ok(())
}

#[test]
fn constants_are_computed_once_and_stay() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[40]);
    let four = FillConstant { shape: vec![1], dtype: DType::F32, value: 4.0, ..FillConstant::of(New) };
    let two = net.emit(four).out.sqrt();
    let out = &w * &two;
    let (mut session, mut scope) = session(&net, &[&out.name(), &two.name()])?;
    assert_eq!(session.instruction_count(), 1);
    for _ in 0..3 {
        session.run(&mut scope)?;
        assert_eq!(session.item(&two.name())?, 2.0);
        let w = scope.get("w")?.slice::<f32>()?.to_vec();
        let expected: Vec<f32> = w.iter().map(|w| w * 2.0).collect();
        assert_eq!(session.slice::<f32>(&out.name())?, expected);
    }
    Ok(())
}

/// Names and dtypes of inputs.
type Feeds = Vec<(String, DType)>;

/// A program that runs a formula on inputs of one shape, with another formula before each input and after each output;
/// returns the inputs and the names of all computed variables.
fn surrounded(ops: &OpInfoMap, name: &'static str, dtype: DType) -> Result<(Program, Feeds, Vec<String>)> {
    let schema = ops.get(name)?.schema();
    let mut program = Program::new();
    let declare = |program: &mut Program, name: String, dtype| {
        let var = program.var(&name);
        program.root_mut().vars.insert(var, VarDesc::new(dtype, Dims::from([3, 100])));
        (var, name)
    };
    let (mut inputs, mut computed, mut desc) = (vec![], vec![], OpDesc::new(name));
    for slot in schema.inputs {
        let (before, dtype) = match slot.name {
            "Condition" => ("logical_not", DType::Bool),
            "Mask" => ("assign", DType::U8),
            _ => ("sqrt", dtype),
        };
        let (x, x_name) = declare(&mut program, format!("x_{}", slot.name), dtype);
        let (h, h_name) = declare(&mut program, format!("h_{}", slot.name), dtype);
        program.root_mut().ops.push(OpDesc::new(before).input("X", [x]).output("Out", [h]));
        desc = desc.input(slot.name, [h]);
        inputs.push((x_name, dtype));
        computed.push(h_name);
    }
    let mut behind = vec![];
    for slot in schema.outputs {
        let (y, y_name) = declare(&mut program, format!("y_{}", slot.name), dtype);
        let (z, z_name) = declare(&mut program, format!("z_{}", slot.name), dtype);
        behind.push(OpDesc::new("tanh").input("X", [y]).output("Out", [z]));
        desc = desc.output(slot.name, [y]);
        computed.extend([y_name, z_name]);
    }
    for attr in schema.attrs.iter().filter(|attr| attr.default.is_none()) {
        desc = desc.attr(
            attr.name,
            match attr.ty {
                AttrType::I32 => Attr::I32(1),
                AttrType::F32 => Attr::F32(0.5),
                AttrType::F64 => Attr::F64(0.5),
                AttrType::Bool => Attr::Bool(true),
                other => panic!("`{name}`: a value for `{}`, of type {other}", attr.name),
            },
        );
    }
    program.root_mut().ops.push(desc);
    program.root_mut().ops.extend(behind);
    Ok((program, inputs, computed))
}

#[test]
fn formulas_are_bit_identical_fused_and_unfused() -> Result<()> {
    let ops = OpInfoMap::linked()?;
    let mut formulas = 0;
    // Comparisons and casts, which have a kernel and a formula, are tested below.
    let is_arithmetic =
        |info: &OpInfo| !matches!(info.grad_kind(), GradKind::Zero) && info.schema().name != "cast";
    let formula = |info: &&OpInfo| info.schema().pointwise && (!info.has_kernel() || is_arithmetic(info));
    // The tests' own operators have false shape rules.
    let is_own = |info: &&OpInfo| info.crate_name() == env!("CARGO_PKG_NAME");
    for info in ops.iter().filter(formula).filter(|info| !is_own(info)) {
        let name = info.schema().name;
        for dtype in [DType::F32, DType::F64] {
            let (program, inputs, computed) = surrounded(ops, name, dtype)?;
            // Where every function is defined.
            let least = if name.starts_with("acosh") { 1.05 } else { 0.05 };
            let numbers =
                |seed: usize| (0..300).map(move |i| least + ((i * 37 + seed * 11) % 300) as f64 / 350.0);
            let tensor = |(seed, (_, dtype)): (usize, &(String, DType))| match dtype {
                DType::Bool => {
                    Tensor::from_vec([3, 100], numbers(seed).map(|x| Bool::from(x < 0.5)).collect())
                }
                DType::U8 => Tensor::from_vec([3, 100], numbers(seed).map(|x| u8::from(x < 0.5)).collect()),
                DType::F32 => Tensor::from_vec([3, 100], numbers(seed).map(|x| x as f32).collect()),
                _ => Tensor::from_vec([3, 100], numbers(seed).collect()),
            };
            let tensors: Vec<Tensor> = inputs.iter().enumerate().map(tensor).collect::<Result<_>>()?;
            let feeds: Vec<(&str, &dyn Feed)> =
                inputs.iter().zip(&tensors).map(|((name, _), tensor)| (name.as_str(), tensor as _)).collect();
            let all: Vec<&str> = computed.iter().map(String::as_str).collect();
            let last: Vec<&str> = all.iter().copied().filter(|name| name.starts_with("z_")).collect();
            let run = |mut executor: Executor, fetches: &[&str]| {
                executor.run(&program, &mut Scope::new(), &feeds, fetches)
            };
            let apart = run(Executor::with_threads(1).check_finite(true), &last)?;
            assert_eq!(run(Executor::with_threads(1), &last)?, apart, "{name}");
            // With everything in memory, too.
            let kept = run(Executor::with_threads(2), &all)?;
            let kept = kept.into_iter().zip(&all).filter(|(_, name)| last.contains(name));
            assert_eq!(kept.map(|(tensor, _)| tensor).collect::<Vec<_>>(), apart, "{name}");
        }
        formulas += 1;
    }
    assert!(formulas > 80, "{formulas}");
    Ok(())
}

#[test]
fn formulas_are_equal_with_other_instruction_sets() {
    for isa in ["avx2", "baseline"] {
        autobwd_tests::run_again(isa, "fusion::formulas_are_bit_identical").unwrap();
    }
}

#[test]
fn comparisons_selections_and_casts_run_with_their_neighbours() -> Result<()> {
    let net = Builder::new();
    let (x, y) = (net.input("x", DType::F64, &[-1, 6]), net.input("y", DType::F64, &[6]));
    let (a, b) = (parameter_of(&net, "a", DType::F64, &[6, 6]), parameter_of(&net, "b", DType::F64, &[6, 6]));
    let axis = -1;
    let (x_in, y_in) = (|| Arg::from(&x), || Arg::from(&y));
    let compared = [
        emit(LessThan { x: x_in(), y: y_in(), out: New, axis }).out,
        emit(LessEqual { x: x_in(), y: y_in(), out: New, axis }).out,
        emit(GreaterThan { x: x_in(), y: y_in(), out: New, axis }).out,
        emit(GreaterEqual { x: x_in(), y: y_in(), out: New, axis }).out,
        emit(Equal { x: x_in(), y: y_in(), out: New, axis }).out,
        emit(NotEqual { x: x_in(), y: y_in(), out: New, axis }).out,
    ];
    let [less, at_most, more, at_least, equal, unequal] = compared.each_ref().map(|c| move || Arg::from(c));
    let and = emit(LogicalAnd { x: less(), y: unequal(), out: New }).out;
    let or = emit(LogicalOr { x: Arg::from(&and), y: at_least(), out: New }).out;
    let xor = emit(LogicalXor { x: Arg::from(&or), y: at_most(), out: New }).out;
    let not = emit(LogicalNot { x: Arg::from(&xor), out: New }).out;
    let chosen = |condition: Arg, of: &Expr, or: &Expr| {
        emit(Where { condition, x: of.into(), y: or.into(), out: New }).out
    };
    let cast = |x: &Expr, from, to| emit(Cast { x: x.into(), out: New, in_dtype: from, out_dtype: to }).out;
    let (float, bool) = (DType::F64, DType::Bool);
    let mut out = chosen(Arg::from(&not), &a.tanh(), &b);
    out = chosen(more(), &out, &(&out * 2.0));
    out = chosen(equal(), &out, &a);
    let sign = cast(&cast(&(&out - &b), float, bool), bool, float);
    let loss = (&out * cast(&or, bool, float) + &sign).sum(&[]);
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;

    let edge = [-0.0, 0.0, 1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let x = Tensor::from_vec([6, 6], edge.iter().flat_map(|x| [*x; 6]).collect())?;
    let y = Tensor::from_vec([6], edge.to_vec())?;
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    let feeds = [("x", Meta::new(float, [6, 6])), ("y", Meta::new(float, [6]))];
    let last = [&loss.name()[..], "a@GRAD", "b@GRAD"];
    let together = Executor::with_threads(1).prepare(&program, &mut scope, &feeds, &last)?;
    assert_eq!(together.instruction_count(), 1, "{}", Executor::new().plan(&program, &scope, &feeds, &last)?);

    // With bools in memory, and with kernels in place of formulas.
    let names: Vec<String> =
        compared.iter().chain([&and, &or, &xor, &not, &out, &sign]).map(Expr::name).collect();
    let all: Vec<&str> = last.into_iter().chain(names.iter().map(String::as_str)).collect();
    let mut run = |mut executor: Executor, fetches: &[&str]| {
        executor.run(&program, &mut scope, &[("x", &x), ("y", &y)], fetches)
    };
    let apart = run(Executor::with_threads(1).check_finite(true), &all)?;
    assert_eq!(run(Executor::with_threads(1), &last)?, apart[..3]);
    assert_eq!(run(Executor::with_threads(2), &all)?, apart);
    let bools =
        |i: usize| apart[3 + i].slice::<Bool>().map(|b| b.iter().map(|b| b.get()).collect::<Vec<_>>());
    let expected = |holds: fn(&f64, &f64) -> bool| -> Vec<bool> {
        edge.iter().flat_map(|x| edge.iter().map(move |y| holds(x, y))).collect()
    };
    assert_eq!(bools(0)?, expected(f64::lt));
    assert_eq!(bools(3)?, expected(f64::ge));
    assert_eq!(bools(5)?, expected(f64::ne));
    Ok(())
}

#[test]
fn fused_kernels_convert_numbers_that_they_read_and_write() -> Result<()> {
    let net = Builder::new();
    let (x, label) = (net.input("x", DType::F32, &[-1, 3]), net.input("label", DType::I64, &[-1, 1]));
    let wide = net.input("wide", DType::F64, &[3]);
    let cast = |x: &Expr, from, to| emit(Cast { x: x.into(), out: New, in_dtype: from, out_dtype: to }).out;
    let (int, single, double) = (DType::I64, DType::F32, DType::F64);
    let product = cast(&label, int, single) * &x;
    let outs = [
        cast(&product, single, double).square(),
        cast(&product, single, int),
        cast(&product, single, DType::U8),
        // Intermediate rounding is kept.
        (cast(&cast(&wide.square(), double, single), single, double) - &wide),
        (&product - cast(&wide, double, single)),
    ];
    let x = Tensor::from_vec([2, 3], vec![0.1_f32, -2.7, 0.0, 1e9, -1e19, 99.9])?;
    let label = Tensor::from_vec([2, 1], vec![3, (1_i64 << 40) + 1])?;
    let wide = Tensor::from_vec([3], vec![0.1, 7.3, -0.3])?;
    let names = outs.each_ref().map(Expr::name);
    let fetches = names.each_ref().map(String::as_str);
    let feeds: [(&str, &dyn Feed); 3] = [("x", &x), ("label", &label), ("wide", &wide)];
    let metas = feeds.map(|(name, x)| (name, x.meta()));
    let mut scope = Scope::new();
    let session = Executor::with_threads(1).prepare(&net.program()?, &mut scope, &metas, &fetches)?;
    // Twelve operators; neighbours over the same elements are fused, conversions with either side.
    let plan = Executor::new().plan(&net.program()?, &scope, &metas, &fetches)?;
    assert_eq!(session.instruction_count(), 7, "{plan}");
    let together = Executor::with_threads(1).run(&net.program()?, &mut scope, &feeds, &fetches)?;
    let apart =
        Executor::with_threads(1).check_finite(true).run(&net.program()?, &mut scope, &feeds, &fetches)?;
    assert_eq!(together, apart);
    assert_eq!(together[1].slice::<i64>()?[..3], [0, -8, 0]);
    Ok(())
}

#[test]
fn booleans_of_a_fused_kernel_may_reuse_memory() -> Result<()> {
    const N: usize = 100_000;
    let net = Builder::new();
    let x = net.input("x", DType::Bool, &[N as i64]);
    let not = x.logical_not();
    let same = not.logical_not();
    let x = Tensor::from_vec([N], (0..N).map(|i| Bool::from(i % 3 == 0)).collect())?;
    let fetches = [&*not.name(), &same.name()];
    let mut scope = Scope::new();
    let mut session =
        Executor::with_threads(2).prepare(&net.program()?, &mut scope, &[("x", x.meta())], &fetches)?;
    session.feed("x", &x)?;
    session.run(&mut scope)?;
    // The first is in the place of `x`.
    assert_eq!((session.instruction_count(), session.arena_bytes()), (1, 2 * N.next_multiple_of(64)));
    assert_eq!(session.fetch(&same.name())?, x);
    let not = session.fetch(&not.name())?;
    assert!(not.slice::<Bool>()?.iter().enumerate().all(|(i, not)| not.get() == (i % 3 != 0)));
    Ok(())
}

#[test]
fn repeated_gradients_are_added_up_where_they_are_made() -> Result<()> {
    let net = Builder::new();
    let w = parameter(&net, "w", &[100]);
    let h = w.tanh() + w.sin() + w.exp();
    let loss = h.mean();
    let mut program = net.program()?.clone();
    append_backward(&mut program, &loss.name(), &Backward::default())?;
    assert!(program.root().ops.iter().any(|op| op.ty == "sum"), "{program}");
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    let session = Executor::with_threads(1).prepare(&program, &mut scope, &[], &["w@GRAD"])?;
    assert_eq!(session.instruction_count(), 1, "{program}");
    Ok(())
}

#[test]
fn unneeded_copies_are_elided() -> Result<()> {
    let net = Builder::new();
    let (w, b) = (parameter(&net, "w", &[40]), parameter(&net, "b", &[40]));
    let h = w.tanh();
    let sum = &h + b.sin();
    let copy = emit(Assign { x: (&sum).into(), out: New }).out;
    // Later writes do not change the copy.
    let before = emit(Assign { x: (&b).into(), out: New }).out;
    let loss = (&copy * &copy).sum(&[]);
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    let after = &before * 2.0;
    let run = |fetches: &[&str]| -> Result<(Vec<String>, Vec<Tensor>)> {
        let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
        executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
        let expected = scope.get("b")?.to_f64s();
        let plan = executor.plan(&net.program()?, &scope, &[], fetches)?;
        let operators = plan.instructions().iter().flat_map(|frame| frame.operators.clone()).collect();
        let mut found = executor.run(&net.program()?, &mut scope, &[], fetches)?;
        let doubled: Vec<f64> = expected.iter().map(|b| b * 2.0).collect();
        assert_eq!(found.remove(0).to_f64s(), doubled);
        found.extend(["w", "b"].map(|name| scope.get(name).unwrap().clone()));
        Ok((operators, found))
    };
    let count = |operators: &[String], name: &str| operators.iter().filter(|op| *op == name).count();
    let (few, expected) = run(&[&after.name()])?;
    assert_eq!((count(&few, "assign"), count(&few, "elementwise_add_grad")), (1, 0), "{few:?}");
    let of = |x: &Expr| format!("{}@GRAD", x.name());
    for (fetched, assigned, added) in [(copy.name(), 2, 0), (of(&copy), 1, 0), (of(&h), 1, 1), (of(&w), 1, 0)]
    {
        let (all, found) = run(&[&after.name(), &fetched])?;
        assert_eq!(
            (count(&all, "assign"), count(&all, "elementwise_add_grad")),
            (assigned, added),
            "{fetched}: {all:?}"
        );
        assert_eq!(found[1..], expected[..], "{fetched}");
    }
    Ok(())
}

#[test]
fn plan_is_shown_as_a_table_and_as_a_picture() -> Result<()> {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[-1, 64]);
    let (w, b) = (parameter(&net, "w", &[64, 32]), parameter(&net, "b", &[32]));
    let h = (x.matmul(&w) + &b).tanh();
    let loss = h.square().mean();
    Sgd { rate: 0.1 }.minimize(&loss)?.complete()?;
    let mut scope = Scope::new();
    Executor::with_threads(1).run(&net.startup().program()?, &mut scope, &[], &[])?;
    let feeds = [("x", Meta::new(DType::F32, [100, 64]))];
    let executor = Executor::with_threads(1);
    let plan = executor.plan(&net.program()?, &scope, &feeds, &[&loss.name()])?;
    crate::support::compare("framework/stories/plan.txt", &plan.to_string());
    crate::support::compare("framework/stories/plan.svg", &plan.to_svg());
    let session = executor.prepare(&net.program()?, &mut scope, &feeds, &[&loss.name()])?;
    assert_eq!((plan.arena_bytes(), plan.live_bytes()), (session.arena_bytes(), session.live_bytes()));
    assert_eq!(plan.instructions().iter().filter(|frame| !frame.once).count(), session.instruction_count());
    for (i, a) in plan.buffers().iter().enumerate() {
        assert!(a.offset + a.bytes <= plan.arena_bytes());
        for b in &plan.buffers()[..i] {
            let together = a.first <= b.last && b.first <= a.last;
            let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
            assert!(apart || !together, "{a:?} {b:?}");
        }
    }
    Ok(())
}

/// Has a false shape rule.
#[register_op(grad = NoGrad, decomposed)]
pub(crate) struct Crooked<V = Var> {
    #[input]
    pub x: V,
    #[output(like = x)]
    pub out: V,
}
impl Decompose for Crooked {
    fn decompose(&self, parts: &mut Parts<'_>) {
        let turned = parts.dims(self.x).iter().rev().copied().collect();
        parts.align(self.out, turned);
        let (x, out) = (self.x, self.out);
        parts.push(Scale { x, out, scale: 1.0, bias: 0.0, bias_after_scale: true });
    }
}
impl Kernel for Crooked<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}

/// Has a wrong registered replacement for a pair of its kind.
#[register_op(grad = NoGrad, peephole = Mistaken)]
pub(crate) struct Mistaken<V = Var> {
    #[input]
    pub x: V,
    #[output(like = x)]
    pub out: V,
}
impl Kernel for Mistaken<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}
impl Peephole<Mistaken> for Mistaken {
    fn merge(&self, then: &Mistaken) -> Option<OpDesc> {
        Some(Mean { x: self.x, out: then.out }.into())
    }
}

#[test]
fn parts_and_pairs_that_do_not_fit_are_refused() {
    let net = Builder::new();
    let x = net.input("x", DType::F32, &[2, 3]);
    let feeds = [("x", Meta::new(DType::F32, [2, 3]))];
    let refused = |out: &Expr| {
        let plan = Executor::new().plan(&net.program().unwrap(), &Scope::new(), &feeds, &[&out.name()]);
        plan.map(|_| ()).unwrap_err().to_string()
    };
    let crooked = emit(Crooked { x: (&x.tanh()).into(), out: New }).out.tanh();
    let e = refused(&crooked);
    assert!(e.contains("a decomposition has a part `crooked` whose shapes do not match"), "{e}");
    let once = emit(Mistaken { x: (&x).into(), out: New }).out;
    let twice = emit(Mistaken { x: (&once).into(), out: New }).out;
    let e = refused(&twice);
    assert!(e.contains("`mean` is not equivalent to the two operators that it replaces"), "{e}");
}
