//! Collective operators on replicas: their text (`replicas.mlir`, which `UPDATE=1` writes; no plugin needed), and the
//! values of the kernels on ranks that are threads.

use autobwd::{
    Builder, DType, Executor, Expr, Meta, New, OpInfoMap, Program, Result, Scope, Tensor, emit,
    parallel::{CAllgather, CAllreduceSum, CBroadcast, CReduceSum, CReducescatter, threads},
};
use autobwd_xla::{
    DeviceScope, Lowered,
    lower::{LowerRequest, lower},
    pjrt::CompileOptions,
};

use crate::{
    common::compare,
    plugin::{client, device, tensor},
};

/// A program of one collective operator for two ranks.
struct Case {
    program: Program,
    fetches: Vec<String>,
    /// By rank.
    feeds: [Vec<(String, Tensor)>; 2],
}

impl Case {
    fn new(values: &[[Tensor; 2]], build: impl FnOnce(&[Expr]) -> Vec<Expr>) -> Result<Case> {
        let net = Builder::new();
        let name = |i: usize| format!("x{i}");
        let declare = |(i, [x, _]): (usize, &[Tensor; 2])| {
            let dims: Vec<i64> = x.dims().iter().map(|dim| *dim as i64).collect();
            net.input(&name(i), x.dtype(), &dims)
        };
        let inputs: Vec<Expr> = values.iter().enumerate().map(declare).collect();
        let fetches = build(&inputs).iter().map(Expr::name).collect();
        let of = |rank: usize| values.iter().enumerate().map(|(i, x)| (name(i), x[rank].clone())).collect();
        Ok(Case { program: net.program()?.clone(), fetches, feeds: [of(0), of(1)] })
    }

    fn fetches(&self) -> Vec<&str> {
        self.fetches.iter().map(String::as_str).collect()
    }

    fn feeds(&self, rank: usize) -> Vec<(&str, &Tensor)> {
        self.feeds[rank].iter().map(|(name, value)| (name.as_str(), value)).collect()
    }

    fn lowered(&self, replicas: usize) -> Result<Lowered> {
        let feeds: Vec<(&str, Meta)> = self.feeds(0).into_iter().map(|(name, x)| (name, x.meta())).collect();
        let fetches = self.fetches();
        let request = LowerRequest::new(&feeds, &|_| None, &fetches).replicas(replicas);
        let lowered = lower(&self.program, OpInfoMap::linked()?, &request)?;
        lowered.check()?;
        Ok(lowered)
    }

    /// The values of the kernels, by rank.
    fn expected(&self) -> Result<Vec<Vec<Tensor>>> {
        threads::run(2, |transport| {
            let feeds = self.feeds(transport.rank());
            let mut executor = Executor::with_threads(1).with_transport(transport);
            let feeds: Vec<_> = feeds.iter().map(|(name, x)| (*name, *x as &dyn autobwd::Feed)).collect();
            executor.run(&self.program, &mut Scope::new(), &feeds, &self.fetches())
        })
    }
}

fn all_reduce(x: &[Expr], nranks: i32) -> Vec<Expr> {
    let (x, out) = (x.iter().map(Into::into).collect(), x.iter().map(|_| New).collect());
    let (use_calc_stream, use_model_parallel) = (false, false);
    emit(CAllreduceSum { x, out, ring_id: 0, nranks, use_calc_stream, use_model_parallel }).out
}
fn reduce(x: &[Expr], root_id: i32) -> Vec<Expr> {
    let (use_calc_stream, use_model_parallel) = (false, false);
    let x = (&x[0]).into();
    vec![emit(CReduceSum { x, out: New, ring_id: 0, root_id, use_calc_stream, use_model_parallel }).out]
}
fn broadcast(x: &[Expr], root: i32) -> Vec<Expr> {
    vec![emit(CBroadcast { x: (&x[0]).into(), out: New, ring_id: 0, root, use_calc_stream: false }).out]
}
fn all_gather(x: &[Expr]) -> Vec<Expr> {
    vec![emit(CAllgather { x: (&x[0]).into(), out: New, nranks: 2, ring_id: 0, use_calc_stream: false }).out]
}
fn reduce_scatter(x: &[Expr]) -> Vec<Expr> {
    vec![
        emit(CReducescatter { x: (&x[0]).into(), out: New, nranks: 2, ring_id: 0, use_calc_stream: false })
            .out,
    ]
}

/// Tensors of a dtype, one for each rank.
fn pair(dtype: DType, dims: &[usize]) -> Result<[Tensor; 2]> {
    let len: usize = dims.iter().product();
    let numbers = |rank: usize| (0..len).map(move |i| (7 * i + 5 * rank + 3) % 11);
    let number = |x: usize| match dtype {
        DType::Bool => f64::from(x > 5),
        DType::U8 => x as f64,
        dtype if dtype.is_float() => x as f64 / 3.0 - 1.0,
        _ => x as f64 - 5.0,
    };
    let of = |rank: usize| Tensor::from_f64s(dtype, dims, &numbers(rank).map(number).collect::<Vec<_>>());
    Ok([of(0)?, of(1)?])
}

/// The operators with the dtypes that they support.
fn cases() -> Result<Vec<Case>> {
    let mut cases = vec![];
    for dtype in DType::ALL {
        cases.push(Case::new(&[pair(dtype, &[2, 3])?], |x| broadcast(x, 1))?);
        cases.push(Case::new(&[pair(dtype, &[2, 3])?], all_gather)?);
        if !matches!(dtype, DType::Bool | DType::U8) {
            cases.push(Case::new(&[pair(dtype, &[2, 3])?, pair(dtype, &[4])?], |x| all_reduce(x, 2))?);
            cases.push(Case::new(&[pair(dtype, &[2, 3])?], |x| reduce(x, 1))?);
            cases.push(Case::new(&[pair(dtype, &[4, 3])?], reduce_scatter)?);
        }
    }
    let (scalar, empty) = (|| pair(DType::F32, &[]), || pair(DType::F32, &[0, 3]));
    cases.push(Case::new(&[scalar()?], |x| all_reduce(x, 0))?);
    cases.push(Case::new(&[scalar()?], |x| broadcast(x, 0))?);
    cases.push(Case::new(&[empty()?], |x| all_reduce(x, 2))?);
    cases.push(Case::new(&[empty()?], |x| broadcast(x, 1))?);
    cases.push(Case::new(&[empty()?], all_gather)?);
    cases.push(Case::new(&[empty()?], reduce_scatter)?);
    let special = [-0.0, 0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE];
    cases.push(Case::new(&[[tensor(&special), tensor(&[-1.0; 6])]], |x| broadcast(x, 0))?);
    Ok(cases)
}

pub(crate) fn collective_operators_have_the_known_text() -> Result<()> {
    let mut text = String::new();
    let (x, y) = (pair(DType::F32, &[2, 3])?, pair(DType::F32, &[4])?);
    for case in [
        Case::new(&[x.clone(), y], |x| all_reduce(x, 2))?,
        Case::new(std::slice::from_ref(&x), |x| reduce(x, 1))?,
        Case::new(std::slice::from_ref(&x), |x| broadcast(x, 1))?,
        Case::new(std::slice::from_ref(&x), all_gather)?,
        Case::new(&[x], reduce_scatter)?,
    ] {
        let lowered = case.lowered(2)?.text;
        let without_site = |line: &str| match line.trim_start().starts_with("//") {
            true => line.split(',').next().unwrap_or_default().to_string() + "\n",
            false => line.to_string() + "\n",
        };
        text.extend(lowered.lines().map(without_site));
    }
    compare("replicas.mlir", &text);
    Ok(())
}

pub(crate) fn replicas_have_the_values_of_ranks() -> Result<()> {
    let client = client(2)?;
    let devices = client.devices();
    for case in cases()? {
        let program = case.lowered(2)?.compile_with(&client, &CompileOptions::new(&devices))?;
        let mut scopes: Vec<DeviceScope> = devices.iter().map(DeviceScope::new).collect();
        let feeds = [case.feeds(0), case.feeds(1)];
        let found = program.run_replicas(&mut scopes, &[&feeds[0], &feeds[1]], &case.fetches())?;
        for (found, expected) in found.iter().flatten().zip(case.expected()?.iter().flatten()) {
            assert_eq!(
                (found.dtype(), found.dims()),
                (expected.dtype(), expected.dims()),
                "{}",
                case.program
            );
            assert_eq!(found.bytes(), expected.bytes(), "{found:?}, not {expected:?}:\n{}", case.program);
        }
    }
    Ok(())
}

pub(crate) fn program_of_two_replicas_needs_two_devices() -> Result<()> {
    let device = device()?;
    let lowered = Case::new(&[pair(DType::F32, &[2])?], |x| all_reduce(x, 2))?.lowered(2)?;
    let e = lowered.compile(&device).unwrap_err();
    assert_eq!(e.to_string(), "the program is for 2 devices with a replica on each, not for 1 device");
    Ok(())
}

pub(crate) fn program_for_other_ranks_is_refused() -> Result<()> {
    let x = || pair(DType::F32, &[2, 3]);
    let refused = |case: Case, replicas: usize, message: &str| {
        let e = case.lowered(replicas).unwrap_err().to_string();
        assert!(e.contains(message), "{e}");
    };
    refused(Case::new(&[x()?], |x| all_reduce(x, 2))?, 1, "the program is made for 2 ranks, not 1");
    refused(Case::new(&[x()?], |x| all_reduce(x, 2))?, 3, "the program is made for 2 ranks, not 3");
    refused(Case::new(&[x()?], all_gather)?, 1, "the program is made for 2 ranks, not 1");
    refused(Case::new(&[x()?], reduce_scatter)?, 4, "the program is made for 2 ranks, not 4");
    let below = |n| format!("must be below the number of ranks, {n}");
    refused(Case::new(&[x()?], |x| broadcast(x, 2))?, 2, &format!("attribute `root`: {}", below(2)));
    refused(Case::new(&[x()?], |x| reduce(x, 1))?, 1, &format!("attribute `root_id`: {}", below(1)));
    refused(Case::new(&[x()?], |x| all_reduce(x, 0))?, 0, "a program cannot be lowered for 0 devices");
    Ok(())
}
