//! Serialisation of plans for a cluster: Ballista's, with Dormouse's own operators as JSON after a prefix that no
//! Ballista message begins with.

use std::sync::Arc;

use ballista_core::serde::BallistaPhysicalExtensionCodec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion_proto::physical_plan::{PhysicalExtensionCodec, PhysicalProtoConverterExtension};
use serde::{Deserialize, Serialize};

use crate::carried::{self, CarryExec};
use crate::count::{self, CountExec};
use crate::store::{self, PairExec};

/// Prefix of serialised operators. As the first field of a protobuf message, `d` would end a group that never began.
const OWN: &[u8] = b"dormouse ";

/// Specification of one of Dormouse's operators.
#[derive(Debug, Serialize, Deserialize)]
enum Spec {
    Carry(Arc<carried::Spec>),
    Count(Arc<count::Spec>),
    Pairs(Arc<store::PairSpec>),
}

/// The codec of clients, the scheduler and executors.
#[derive(Debug, Default)]
pub struct Codec(BallistaPhysicalExtensionCodec);

impl PhysicalExtensionCodec for Codec {
    fn try_decode(
        &self,
        bytes: &[u8],
        inputs: &[Arc<dyn ExecutionPlan>],
        context: &TaskContext,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let Some(json) = bytes.strip_prefix(OWN) else {
            return self.0.try_decode(bytes, inputs, context, converter);
        };
        let spec: Spec = serde_json::from_slice(json).map_err(|error| DataFusionError::External(error.into()))?;
        Ok(match (spec, inputs) {
            (Spec::Carry(spec), [child]) => Arc::new(CarryExec::new(spec, Arc::clone(child))?),
            (Spec::Count(spec), [child]) => Arc::new(CountExec::new(spec, Arc::clone(child))),
            (Spec::Carry(_) | Spec::Count(_), _) => {
                return Err(DataFusionError::Internal("CarryExec and CountExec have one child".into()));
            }
            (Spec::Pairs(spec), children) => Arc::new(PairExec::new(spec, children.to_vec())?),
        })
    }

    fn try_encode(
        &self,
        node: Arc<dyn ExecutionPlan>,
        bytes: &mut Vec<u8>,
        converter: &dyn PhysicalProtoConverterExtension,
    ) -> Result<()> {
        let pairs = node.downcast_ref().map(|pairs: &PairExec| Spec::Pairs(Arc::clone(&pairs.spec)));
        let count = node.downcast_ref().map(|count: &CountExec| Spec::Count(Arc::clone(&count.spec)));
        let carry = node.downcast_ref().map(|carry: &CarryExec| Spec::Carry(Arc::clone(&carry.spec)));
        let Some(spec) = pairs.or(count).or(carry) else { return self.0.try_encode(node, bytes, converter) };
        bytes.extend_from_slice(OWN);
        serde_json::to_writer(bytes, &spec).map_err(|error| DataFusionError::External(error.into()))
    }
}
