//! Convolutions of the same images whose results are added, as networks have them that are trained with parallel branches
//! (RepVGG, [Ding et al. 2021](https://arxiv.org/abs/2101.03697); MobileOne): they become one convolution.

use std::collections::{HashMap, HashSet};

use autobwd::{OpDesc, Result, Tensor, VarDesc, program::Var};

use super::{
    super::recognise::Uses,
    Frozen,
    convolutions::{ChannelMap, ConstantConvolution, channels, have_same_shape},
};
use crate::{elementwise::ElementwiseAdd, windows::Windows};

/// What a branch computes of its images, before the map of channels.
enum Taps {
    Identity,
    Filter(Var),
    Sum(Vec<f64>),
}

/// A convolution of images, or the images themselves, and a map of channels.
struct Branch {
    input: Var,
    /// The convolution with the windows of the branch, if it has one.
    conv: Option<usize>,
    windows: [Windows; 2],
    taps: Taps,
    /// Filters, channels of a group, height and width.
    dims: [usize; 4],
    map: ChannelMap,
    output: Var,
    /// The operators of the branch.
    ops: Vec<usize>,
}

/// Merges the branches of the main block.
pub(super) fn merge(frozen: &mut Frozen<'_>, fetched: &[Var]) -> Result<()> {
    let uses = Uses::of(&frozen.program, |var| fetched.contains(&var));
    let (mut branches, mut taken): (HashMap<Var, Branch>, HashSet<usize>) = Default::default();
    for (i, op) in frozen.program.root().ops.iter().enumerate() {
        if taken.contains(&i) || op.reads().chain(op.writes()).any(|var| !uses.is_fixed(var)) {
            continue;
        }
        let branch = match Branch::sum(frozen, &uses, i, op, &mut branches)? {
            Some(sum) => Some(sum),
            None => Branch::at(frozen, &uses, i, op),
        };
        if let Some(branch) = branch {
            taken.extend(&branch.ops);
            branches.insert(branch.output, branch);
        }
    }
    let mut merged: HashMap<usize, (usize, Branch)> = HashMap::new();
    for branch in branches.into_values() {
        if let (Taps::Sum(_), Some(conv), Some(last)) =
            (&branch.taps, branch.conv, branch.ops.iter().max().copied())
        {
            merged.insert(last, (conv, branch));
        }
    }
    let replaced: HashSet<usize> =
        merged.values().flat_map(|(_, branch)| branch.ops.iter().copied()).collect();
    let ops = frozen.program.root().ops.clone();
    let mut kept = vec![];
    for (i, op) in ops.iter().enumerate() {
        match merged.remove(&i) {
            Some((conv, branch)) => kept.extend(branch.into_ops(frozen, &ops[conv])?),
            None if replaced.contains(&i) => {}
            None => kept.push(op.clone()),
        }
    }
    frozen.program.root_mut().ops = kept;
    Ok(())
}

impl Branch {
    /// The branch that begins with an operator.
    fn at(frozen: &Frozen<'_>, uses: &Uses, i: usize, op: &OpDesc) -> Option<Branch> {
        let mut branch = if let Some(conv) = ConstantConvolution::of(frozen, op) {
            Branch {
                input: conv.input,
                conv: Some(i),
                windows: conv.windows,
                taps: Taps::Filter(conv.filter),
                dims: conv.dims,
                map: ChannelMap::identity(conv.dims[0]),
                output: conv.output,
                ops: vec![i],
            }
        } else {
            let mut images = op.reads().filter(|var| frozen.value(*var).is_none());
            let (Some(input), None) = (images.next(), images.next()) else { return None };
            let channels = channels(frozen, input)?;
            let mut map = ChannelMap::identity(channels);
            let output = map.follow(frozen, uses, op, input)?;
            let windows = [Windows { size: 1, stride: 1, dilation: 1, before: 0, after: 0 }; 2];
            let dims = [channels, 1, 1, 1];
            Branch { input, conv: None, windows, taps: Taps::Identity, dims, map, output, ops: vec![i] }
        };
        while let Some(reader) = uses.only_reader(branch.output)
            && let Some(output) =
                branch.map.follow(frozen, uses, &frozen.program.root().ops[reader], branch.output)
        {
            branch.output = output;
            branch.ops.push(reader);
        }
        Some(branch)
    }

    /// The sum of two branches that an operator adds, if it is one convolution. The branches are then gone.
    fn sum(
        frozen: &Frozen<'_>,
        uses: &Uses,
        i: usize,
        op: &OpDesc,
        branches: &mut HashMap<Var, Branch>,
    ) -> Result<Option<Branch>> {
        let Some(add) = op.as_op::<ElementwiseAdd>() else { return Ok(None) };
        let are_alone = [add.x, add.y].iter().all(|var| uses.only_reader(*var) == Some(i));
        let (Some(x), Some(y)) = (branches.get(&add.x), branches.get(&add.y)) else { return Ok(None) };
        if !are_alone || add.x == add.y || x.input != y.input || !have_same_shape(frozen, add.x, add.y) {
            return Ok(None);
        }
        let Some((outer, inner, place)) = [(x, y), (y, x)]
            .into_iter()
            .find_map(|(outer, inner)| Some((outer, inner, outer.place_of(inner)?)))
        else {
            return Ok(None);
        };
        let mut sum = outer.elements(frozen, outer.dims)?;
        let [_, share, height, width] = outer.dims;
        let [rows, columns] = [inner.windows[0].size, inner.windows[1].size];
        let elements = inner.elements(frozen, [outer.dims[0], share, rows, columns])?;
        for (sum, elements) in sum.chunks_mut(height * width).zip(elements.chunks(rows * columns)) {
            for (row, elements) in elements.chunks(columns).enumerate() {
                let start = (place[0] + row) * width + place[1];
                sum[start..][..columns].iter_mut().zip(elements).for_each(|(sum, x)| *sum += x);
            }
        }
        let mut map = ChannelMap::identity(outer.dims[0]);
        map.bias = outer.map.bias.iter().zip(&inner.map.bias).map(|(x, y)| x + y).collect();
        let sum = Branch {
            input: outer.input,
            conv: outer.conv,
            windows: outer.windows,
            taps: Taps::Sum(sum),
            dims: outer.dims,
            map,
            output: add.out,
            ops: x.ops.iter().chain(&y.ops).copied().chain([i]).collect(),
        };
        branches.remove(&add.x);
        branches.remove(&add.y);
        Ok(Some(sum))
    }

    /// The row and the column of the first tap of another branch among the taps of this one, if it has all of them.
    fn place_of(&self, other: &Branch) -> Option<[usize; 2]> {
        let same_filters = match other.taps {
            Taps::Identity => self.map.scale.len() == other.map.scale.len(),
            _ => self.dims[..2] == other.dims[..2],
        };
        self.conv.filter(|_| same_filters)?;
        let place = |axis: usize| {
            let (own, other) = (self.windows[axis], other.windows[axis]);
            let offset = own.before.checked_sub(other.before)?;
            let is_on_taps = offset.is_multiple_of(own.dilation)
                && (other.size == 1 || other.dilation == own.dilation)
                && own.stride == other.stride;
            let first = offset / own.dilation;
            (is_on_taps && first + other.size <= own.size).then_some(first)
        };
        Some([place(0)?, place(1)?])
    }

    /// The elements of filters with these dimensions, times the scales of the map.
    fn elements(&self, frozen: &Frozen<'_>, dims: [usize; 4]) -> Result<Vec<f64>> {
        let each: usize = dims[1..].iter().product();
        let mut elements = match &self.taps {
            Taps::Identity => {
                let mut ones = vec![0.0; dims[0] * each];
                ones.chunks_mut(each).enumerate().for_each(|(filter, ones)| ones[filter % dims[1]] = 1.0);
                ones
            }
            Taps::Filter(filter) => frozen.expect(*filter)?.to_f64s(),
            Taps::Sum(elements) => elements.clone(),
        };
        for (filter, scale) in elements.chunks_mut(each).zip(&self.map.scale) {
            filter.iter_mut().for_each(|x| *x *= scale);
        }
        Ok(elements)
    }

    /// The convolution with the elements of the branch, and the addition of its bias.
    fn into_ops(self, frozen: &mut Frozen<'_>, conv: &OpDesc) -> Result<[OpDesc; 2]> {
        let elements: Vec<f32> = self.elements(frozen, self.dims)?.into_iter().map(|x| x as f32).collect();
        let bias: Vec<f32> = self.map.bias.iter().map(|bias| *bias as f32).collect();
        let name = frozen.program.name(self.output).to_string();
        let filter = frozen.constant(&format!("{name}@FILTER"), Tensor::from_vec(self.dims, elements)?);
        let bias = frozen.constant(&format!("{name}@BIAS"), Tensor::from_vec([1, bias.len(), 1, 1], bias)?);
        let without_bias = frozen.program.fresh(&format!("{name}@CONV"));
        let desc = frozen.program.root().vars.get(&self.output).cloned();
        let desc: VarDesc = desc.unwrap_or_else(|| VarDesc::new(autobwd::DType::F32, Default::default()));
        frozen.program.root_mut().vars.insert(without_bias, desc);
        let mut conv = conv.clone();
        conv.inputs.set("Filter", [filter]);
        conv.outputs.set("Output", [without_bias]);
        let add: OpDesc = ElementwiseAdd { x: without_bias, y: bias, out: self.output, axis: -1 }.into();
        let site = conv.site;
        Ok([conv, OpDesc { site, ..add }])
    }
}
