var e=new URL(`../assets/pyodide.asm-DrKroPWM.mjs`,import.meta.url).href,t=new URL(`../assets/pyodide.asm-DoBEEsqh.wasm`,import.meta.url).href,n=new URL(`../assets/pyodide-lock-y3tUuWGz.json`,import.meta.url).href,r=new URL(`../assets/pyodide-B4jtGBwb.mjs`,import.meta.url).href,i=new URL(`../assets/python_stdlib-Dms11Th8.zip`,import.meta.url).href;function a(e,t=2,n=[]){let r=typeof e;if(e===null||r===`undefined`||r===`number`||r===`boolean`||r===`symbol`)return String(e);if(r===`bigint`)return`${String(e)}n`;if(r===`string`)return t<2||n.length?JSON.stringify(e):e;if(r===`function`)return`[function ${e.name||`anonymous`}]`;try{if(e instanceof Error)return e.stack||String(e);if(n.includes(e))return`[circular]`;let r=[...n,e],i=e=>a(e,t-1,r);if(Array.isArray(e))return t<0?`[array of ${e.length}]`:`[${e.slice(0,100).map(i).join(`, `)}${e.length>100?`, … ${e.length-100} more`:``}]`;if(e instanceof Map)return`Map {${[...e].slice(0,100).map(([e,t])=>`${i(e)} => ${i(t)}`).join(`, `)}}`;if(e instanceof Set)return`Set {${[...e].slice(0,100).map(i).join(`, `)}}`;let o=e.constructor?.name??``;if(typeof Node==`function`&&e instanceof Node)return e instanceof Element?e.outerHTML.slice(0,200):e.nodeName;if(t<0)return`[${o||`object`}]`;let s=Object.entries(e).slice(0,100).map(([e,t])=>`${e}: ${i(t)}`);return`${o&&o!==`Object`?`${o} `:``}{${s.join(`, `)}}`}catch{return`[object]`}}function o(e,t,n,r){let i=[],a=0,o=0,s=0,c=0,l=0,u=0,d=setTimeout,f=()=>{clearTimeout(u),u=0,(i.length||c)&&(e({type:`output`,items:i,dropped:c}),i=[],c=0,s++,l=performance.now())};return{write:(e,p)=>{let m=p.split(`
`).length-1;if(a>=t||o>=n)c+=m;else{a+=m,o+=p.length;let t=p.length>n?`${p.slice(0,n)}\n`:p,c=i[i.length-1];if(c&&c[0]===e?c[1]+=t:i.push([e,t]),s<r)return f()}performance.now()-l>50?f():u||=d(f,50)},flush:f}}function s(e,t,n){let r=null,i=null,a=null,o=0,s=[],c=0,l=0,u=()=>{clearTimeout(l),l=0,(s.length||c)&&e.postMessage({type:`output`,run:o,items:s,dropped:c}),s=[],c=0},d=(t,n)=>{t===a&&(n.type===`output`?(s.push(...n.items),c+=n.dropped,l||=setTimeout(u,50)):(u(),n.type===`done`&&(a=null),e.postMessage({...n,run:o})))},f=t=>{let n=new Worker(URL.createObjectURL(new Blob([t],{type:`text/javascript`})));return n.onmessage=({data:e})=>d(n,e),n.onerror=t=>{t.preventDefault();let r=t.message||`The worker failed.`;n===a&&e.postMessage({type:`error`,run:o,error:{message:r,line:null,details:r},fatal:!0})},n},p=()=>{i=f(t),i.postMessage({type:`boot`,assets:r})},m=()=>{u(),a?.terminate(),a&&a===i&&p(),a=null};e.onmessage=async({data:t})=>{t.type===`ping`?e.postMessage({type:`pong`}):t.type===`assets`?(r={wasm:await WebAssembly.compile(t.wasm),loader:t.loader,asm:t.asm,stdlib:new Blob([t.stdlib]),lock:t.lock,runner:t.runner},p(),e.postMessage({type:`python`})):t.type===`stop`?(m(),e.postMessage({type:`stopped`,run:t.run})):(m(),o=t.run,a=t.type===`python`?i:f(n),a?.postMessage(t))},e.postMessage({type:`ready`})}function c(e,t,n,r){let i=self,a=i.postMessage.bind(i),o=e=>URL.createObjectURL(new Blob([e],{type:`text/javascript`})),s=t(a,n,r,1/0),c,l,u=async t=>{let n=`https://python.invalid/`;i.fetch=async e=>new Response(String(e).endsWith(`.zip`)?t.stdlib:null),WebAssembly.instantiateStreaming=async(e,n)=>({module:t.wasm,instance:await WebAssembly.instantiate(t.wasm,n??{})});let[{loadPyodide:r},{default:a}]=await Promise.all([e(o(t.loader)),e(o(t.asm))]);c=await r({indexURL:n,packageBaseUrl:n,lockFileContents:t.lock,createPyodideModule:a,env:{HOME:`/home/pyodide`,PYTHONUNBUFFERED:`1`}});for(let[e,t]of[[`out`,`setStdout`],[`err`,`setStderr`]]){let n=new TextDecoder;c[t]({isatty:!0,write:t=>(s.write(e,n.decode(t,{stream:!0})),t.length)})}l=c.runPython(t.runner),i.fetch=()=>Promise.reject(TypeError(`There is no network here.`))},d=e=>{let t=String(e?.message??e);s.flush(),a({type:`error`,error:{message:t,line:null,details:t},fatal:!0})},f=null;i.onmessage=async({data:e})=>{if(e.type===`boot`){f=u(e.assets);return}try{await f}catch(e){return d(e)}s=t(a,n,r,1/0),a({type:`started`});let i=null;try{i=await(l.callPromising??l).call(l,e.name,JSON.stringify(e.files),e.inputMessage)}catch(e){return d(e)}s.flush(),i&&a({type:`error`,error:JSON.parse(i),fatal:!1}),a({type:`done`})}}function l(e,t,n,r,i){let a=self,o=a.postMessage.bind(a),{setTimeout:s,clearTimeout:c,setInterval:l,clearInterval:u}=a,d=t(o,r,i,1/0),f=new Set,p=!1,m=``,h=()=>{s(()=>s(()=>{p&&!f.size&&(d.flush(),o({type:`done`}))},0),0)};a.setTimeout=((e,t,...n)=>{let r=s(()=>{f.delete(r);try{e(...n)}finally{h()}},t);return f.add(r),r}),a.setInterval=((e,t,...n)=>{let r=l(e,t,...n);return f.add(r),r});let g=e=>t=>{e(t),f.delete(t),h()};a.clearTimeout=g(c),a.clearInterval=g(u);for(let[e,t]of[[`log`,`out`],[`info`,`info`],[`debug`,`out`],[`warn`,`warn`],[`error`,`err`],[`table`,`out`],[`dir`,`out`],[`trace`,`out`]])console[e]=(...e)=>d.write(t,`${e.map(e=>n(e)).join(` `)}\n`);let _=(e,t)=>{let r=e?.stack??``,i=e instanceof Error?`${e.name}: ${e.message}`:n(e),a=t??Number(r.split(m)[1]?.match(/^:(\d+)/)?.[1]??0);d.flush(),o({type:`error`,error:{message:i,line:a||null,details:a?`${i}\n    at line ${a}`:i},fatal:!1})};a.onerror=((...e)=>(_(e[4]??e[0],e[1]===m?e[2]:null),!0)),a.onunhandledrejection=e=>{e.preventDefault(),_(e.reason,null)},a.onmessage=async({data:t})=>{a.onmessage=null,o({type:`started`}),m=URL.createObjectURL(new Blob([t.code],{type:`text/javascript`}));try{try{a.importScripts(m)}catch(t){if(!(t instanceof SyntaxError)||!/await|import|export/.test(t.message))throw t;await e(m)}}catch(e){_(e,null)}p=!0,h()}}function u(e,t,n,r,i,a,o){let s=e.postMessage.bind(e),c=window.setTimeout.bind(window),l=performance.now.bind(performance),u=t(s,r,i,200);for(let[e,t]of[[`log`,`out`],[`info`,`info`],[`debug`,`out`],[`warn`,`warn`],[`error`,`err`],[`table`,`out`],[`dir`,`out`],[`trace`,`out`]])console[e]=(...e)=>u.write(t,`${e.map(e=>n(e)).join(` `)}\n`);for(let[e,t]of[[`alert`,void 0],[`confirm`,!1],[`prompt`,null]])window[e]=(r=``)=>(u.write(`info`,`${e}: ${n(r)}\n`),t);for(let e of[`RTCPeerConnection`,`webkitRTCPeerConnection`])delete window[e];let d=e=>Function.prototype.call.bind(e),f=d(Element.prototype.remove),p=d(Document.prototype.querySelector),m=d(DocumentFragment.prototype.querySelector),h=d(Element.prototype.attachShadow),g=(e,t)=>{new MutationObserver(()=>{for(let n=t(e,`iframe`);n;n=t(e,`iframe`))f(n),u.write(`warn`,`${o.replace(`{what}`,`<iframe>`)}\n`)}).observe(e,{childList:!0,subtree:!0})};Element.prototype.attachShadow=function(e){let t=h(this,e);return g(t,m),t};for(let e of[Element.prototype,ShadowRoot.prototype])delete e.setHTMLUnsafe;let _=!1,v=0,y=0;Object.defineProperty(window,"__loop",{value:()=>{if(_||(_=!0,v=l(),c(()=>_=!1,0)),!(++y&255)&&l()-v>2e3)throw Error(a)}});for(let e of[`localStorage`,`sessionStorage`]){let t=new Map;Object.defineProperty(window,e,{value:{getItem:e=>t.get(String(e))??null,setItem:(e,n)=>void t.set(String(e),String(n)),removeItem:e=>void t.delete(String(e)),clear:()=>t.clear(),key:e=>[...t.keys()][e]??null,get length(){return t.size}}})}let b=(e,t)=>{(e.noValidate||e.reportValidity())&&e.dispatchEvent(new SubmitEvent(`submit`,{bubbles:!0,cancelable:!0,submitter:t}))};HTMLFormElement.prototype.requestSubmit=function(e){b(this,e??null)};let x=()=>{window.addEventListener(`error`,e=>{if(!(e instanceof ErrorEvent))return;let t=e.error instanceof Error?`${e.error.name}: ${e.error.message}`:e.message,n=/^(?:line|file):/.test(e.filename)?[``,e.filename,e.lineno]:/((?:line|file):[^\s():]+):(\d+):\d+/.exec(String(e.error?.stack));s({type:`error`,error:{message:t,line:Number(n?.[2])||null,place:n?.[1],details:t},fatal:!1})}),window.addEventListener(`unhandledrejection`,e=>{let t=e.reason instanceof Error?`${e.reason.name}: ${e.reason.message}`:String(e.reason);s({type:`error`,error:{message:t,line:null,details:t},fatal:!1})}),document.addEventListener(`securitypolicyviolation`,e=>u.write(`warn`,`${o.replace(`{what}`,e.blockedURI)}\n`)),window.addEventListener(`click`,e=>{let t=e.composedPath().find(e=>e instanceof Element&&/^(a|area|button|input)$/i.test(e.tagName));if(t&&!e.defaultPrevented){if(/^a/i.test(t.tagName)){let n=t.getAttribute(`href`)??t.getAttribute(`xlink:href`);if(n===null||/^(#|javascript:)/i.test(n))return;e.preventDefault(),u.write(`warn`,`${o.replace(`{what}`,n)}\n`)}else(t instanceof HTMLButtonElement||t instanceof HTMLInputElement)&&/^(submit|image)$/.test(t.type)&&t.form&&(e.preventDefault(),b(t.form,t))}}),window.addEventListener(`keydown`,e=>{let t=e.target;e.key===`Enter`&&!e.defaultPrevented&&t instanceof HTMLInputElement&&t.form&&(t.form.querySelector(`[type=submit],[type=image],button:not([type])`)||b(t.form,null))})};e.onmessage=({data:e})=>{e.type===`ping`?s({type:`pong`}):e.type===`open`?(document.open(),x(),g(document,p)):e.type===`write`?document.write(e.html.replace(/shadowrootmode/gi,`data-$&`)):e.type===`close`&&document.close()},s({type:`ready`})}var d=/<script\b(?:"[^"]*"|'[^']*'|[^"'>])*>/i,f=/<link\b(?:"[^"]*"|'[^']*'|[^"'>])*>/gi,p=(e,t)=>{let n=RegExp(`\\b${t}\\s*=\\s*(?:"([^"]*)"|'([^']*)'|([^\\s>]+))`,`i`).exec(e);return n?n[1]??n[2]??n[3]??``:null},m=class{guard;files;buffer=``;line=1;constructor(e,t=[]){this.guard=e,this.files=t}push(e){this.buffer+=e;let t=``;for(;;){let e=d.exec(this.buffer);if(!e)break;let n=e.index+e[0].length,r=/<\/script\s*>/i.exec(this.buffer.slice(n));if(!r)return t+this.take(e.index);let i=this.buffer.slice(n,n+r.index);t+=this.take(e.index),t+=this.script(e[0],i),this.skip(e[0].length+r.index+r[0].length)}let n=this.buffer.lastIndexOf(`<`),r=n>=0&&!this.buffer.includes(`>`,n)?n:this.buffer.length;return t+this.take(r)}end(){return this.take(this.buffer.length)}take(e){let t=this.buffer.slice(0,e);return this.skip(e),t.replace(f,e=>{let t=/stylesheet/i.test(p(e,`rel`)??``)&&this.file(p(e,`href`));return t?`<style>${t.code.replace(/<\/style/gi,`<\\/style`)}</style>`:e})}skip(e){this.line+=this.buffer.slice(0,e).split(`
`).length-1,this.buffer=this.buffer.slice(e)}script(e,t){let n=(p(e,`type`)??``).toLowerCase();if(n&&!/^(module|text\/javascript|application\/javascript|text\/babel)$/.test(n))return`${e}${t}<\/script>`;let r=p(e,`src`),i=this.file(r);if(r!==null&&!i)return`${e}${t}<\/script>`;let a=i?`file:${i.name}`:`line:${this.line+e.split(`
`).length-1}`;return`${i?e.replace(/\s(?:src|integrity|crossorigin)\s*=\s*(?:"[^"]*"|'[^']*'|[^\s>]+)/gi,``):e}${this.guard(i?i.code:t).replace(/<\/script/gi,`<\\/script`)}\n//# sourceURL=${a}\n<\/script>`}file(e){let t=e?.replace(/^\.?\//,``).replace(/[?#].*$/,``);return t?this.files.find(e=>e.name===t):void 0}},h=5e3,g=1e6,_=1e4,v=`"""Runs one program in a fresh \`__main__\` and returns its error as JSON, or None. The value of this file is the function."""

import builtins
import contextlib
import io
import json
import linecache
import os
import sys
import traceback
import types

ROOT = "/home/pyodide"
sys.path.insert(0, ROOT)
written = set()


def run(name, files, input_message):
    files = json.loads(files)
    path = f"{ROOT}/{name}"
    forget_last_run()
    for file in files:
        target = f"{ROOT}/{file['name']}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8") as out:
            out.write(file["code"])
        written.add(target)
        sys.modules.pop(os.path.splitext(file["name"])[0].replace("/", "."), None)
    code = next(file["code"] for file in files if file["name"] == name)
    linecache.clearcache()

    def no_input(prompt=""):
        raise EOFError(input_message)

    builtins.input = no_input
    main = types.ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.argv = [name]
    os.chdir(ROOT)
    try:
        exec(compile(code, path, "exec"), main.__dict__)
    except SystemExit as leave:
        if leave.code not in (None, 0):
            return failure(f"SystemExit: {leave.code}", None, f"SystemExit: {leave.code}")
    except BaseException as error:
        return explain(error, path, name)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # the program may have closed or replaced it
                stream.flush()
        cancel_tasks()
    return None


def forget_last_run():
    """Files and modules of the chat, and streams that the program before may have closed or replaced."""
    for target in written:
        with contextlib.suppress(OSError):
            os.remove(target)
    written.clear()
    for module, value in list(sys.modules.items()):
        if (getattr(value, "__file__", None) or "").startswith(ROOT):
            del sys.modules[module]
    for number, stream in ((1, "stdout"), (2, "stderr")):
        raw = io.FileIO(number, "w", closefd=False)
        setattr(sys, stream, io.TextIOWrapper(raw, encoding="utf-8", write_through=True))


def cancel_tasks():
    """A task that nobody waits for would go on into the next run."""
    if "asyncio" in sys.modules:
        import asyncio

        with contextlib.suppress(RuntimeError):
            for task in asyncio.all_tasks(asyncio.get_event_loop()):
                task.cancel()


def explain(error, path, name):
    lines = traceback.format_exception_only(error)
    message = lines[-1].strip().splitlines()[-1] if lines else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename == path:
        return failure(message, error.lineno, "".join(lines).replace(path, name))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != run.__code__.co_filename]
    own = [frame for frame in frames if frame.filename == path]
    first = next((i for i, frame in enumerate(frames) if frame.filename == path), 0)
    text = "Traceback (most recent call last):\\n" + "".join(shorten(traceback.format_list(frames[first:])) + lines)
    return failure(message, own[-1].lineno if own else None, text.replace(path, name))


def shorten(entries):
    """A deep recursion says the same two hundred times: its first and last frames are enough."""
    return entries if len(entries) <= 20 else entries[:8] + [f"  ... {len(entries) - 16} more frames ...\\n"] + entries[-8:]


def failure(message, line, details):
    return json.dumps({"message": message, "line": line, "details": details})


run  # noqa: B018 (the value of this file)
`,y=1e4,b=1e3,x=3e3,S=500,C=2e3,w=class{element=document.createElement(`iframe`);onMessage=()=>{};onLost=()=>{};port=null;opened=null;timer=0;waiting=[];lastPong=0;lastPing=0;messages=0;closed=!1;stray=e=>{e.source===this.element.contentWindow&&this.count()};constructor(e,t,n){this.element.setAttribute(`sandbox`,`allow-scripts`),this.element.src=`/sandbox/`,this.element.title=t,this.element.addEventListener(`load`,()=>this.connect(n),{once:!0}),window.addEventListener(`message`,this.stray),this.timer=window.setTimeout(()=>this.lose(`failed`),y),e.append(this.element)}send(e){this.port?this.port.postMessage(e):this.waiting.push(e)}close(){this.closed||(this.closed=!0,clearInterval(this.timer),window.removeEventListener(`message`,this.stray),this.port?.close(),this.element.remove())}connect(e){let t=new MessageChannel;t.port1.onmessage=({data:e})=>this.received(e),this.opened=t.port1,this.element.contentWindow?.postMessage(e,`*`,[t.port2])}received(e){if(!this.closed&&typeof e==`object`&&e){if(this.lastPong=performance.now(),e.type===`ready`&&!this.port){this.port=this.opened,clearTimeout(this.timer),this.lastPing=this.lastPong,this.timer=window.setInterval(()=>this.watch(),b);for(let e of this.waiting.splice(0))this.port.postMessage(e)}else e.type!==`pong`&&this.count();this.closed||this.onMessage(e)}}watch(){let e=performance.now(),t=e-this.lastPing<2*b;if(this.lastPing=e,this.messages=0,(!t||document.hidden)&&(this.lastPong=e),e-this.lastPong>x)return this.lose(`hung`);this.port?.postMessage({type:`ping`})}count(){++this.messages>C&&this.lose(`flood`)}lose(e){this.closed||(this.close(),this.onLost(e))}},T=(e,...t)=>`(${e.toString()})(${t.join(`,`)});`,E=`(()=>{const p=window.sandboxPort;delete window.sandboxPort;return p})()`,D=`(url)=>import(url)`,O=[String(h),String(g)];async function k(e,t){let n=await fetch(e);if(!n.ok||!n.body)throw Error(`${e}: ${n.status}`);let r=[],i=n.body.getReader();for(;;){let{done:e,value:n}=await i.read();if(e)break;r.push(n),t(n.byteLength)}return new Blob(r).arrayBuffer()}var A=134e5,j=class{holder;frame=null;current=null;run=0;python=`none`;waiting=null;limit=0;ending=null;constructor(e){this.holder=e}runPython(e,t,n,r){let i=this.take(r);return this.waiting=()=>this.frame?.send({type:`python`,run:i,name:t,files:e,inputMessage:n}),this.python===`none`?this.loadPython():this.python===`ready`&&this.begin(),{stop:()=>this.halt(r,`stopped`)}}runScript(e,t){let n=this.take(t);return this.frame.send({type:`script`,run:n,code:e}),{stop:()=>this.halt(t,`stopped`)}}begin(){this.waiting?.(),this.waiting=null}take(e){return this.finish(this.current,`stopped`),this.current=e,this.frame??=this.openFrame(),++this.run}openFrame(){let e=T(c,D,o.toString(),...O),t=T(l,D,o.toString(),a.toString(),...O),n=new w(this.holder,`Runner`,T(s,E,JSON.stringify(e),JSON.stringify(t)));return n.element.className=`wb-runner`,n.onMessage=e=>this.received(e),n.onLost=e=>{this.frame=null,this.python=`none`,this.finish(this.current,e)},n}async loadPython(){this.python=`loading`;let a=0,o=e=>{a+=e,this.current?.loading(Math.min(a,A),A)},s=async e=>new TextDecoder().decode(await k(e,o));try{let[a,c,l,u,d]=await Promise.all([k(t,o),k(i,o),s(r),s(e),s(n)]);this.frame?.send({type:`assets`,wasm:a,stdlib:c,loader:l,asm:u,lock:M(d),runner:v})}catch(e){this.python=`none`;let t=String(e.message);this.current?.error({message:t,line:null,details:t}),this.finish(this.current,`failed`)}}received(e){let t=this.current;if(e.type===`python`)this.python=`ready`,this.begin();else if(!t||!(`run`in e)||e.run!==this.run)return;else e.type===`stopped`?this.finish(t,this.ending??`stopped`):e.type===`started`?(this.limit=window.setTimeout(()=>this.halt(t,`limit`),_),t.started()):e.type===`error`&&e.fatal?(t.error(N(e.error)),this.finish(t,`failed`)):e.type===`done`?this.finish(t,`done`):F(e,t)}finish(e,t){e&&e===this.current&&(clearTimeout(this.limit),this.current=null,this.waiting=null,this.ending=null,t!==`done`&&this.frame?.send({type:`stop`}),e.end(t))}halt(e,t){e&&e===this.current&&!this.ending&&(clearTimeout(this.limit),this.ending=t,this.waiting=null,this.frame?.send({type:`stop`,run:this.run}),this.limit=window.setTimeout(()=>this.finish(e,t),S))}};function M(e){return JSON.stringify({...JSON.parse(e),packages:{}})}function N(e){let t=Number(e?.line);return{message:P(e?.message).slice(0,2e3),line:Number.isInteger(t)&&t>0?t:null,details:P(e?.details).slice(0,2e4)}}function P(e){return String(e??``).replace(/Failed to execute '\w+' on '\w+': /,``)}function F(e,t){if(e.type===`output`&&Array.isArray(e.items)){let n=e.items.map(([e,t])=>[e,String(t)]);t?.output(n,Number(e.dropped)||0)}else e.type===`error`&&t?.error(N(e.error))}var I=class{listener;frame;feed;ended=!1;pending=``;timer=0;constructor(e,t,n,r,i,s){this.listener=n,this.feed=new m(i,s),this.frame=new w(e,t,T(u,E,o.toString(),a.toString(),...O,JSON.stringify(r.loop),JSON.stringify(r.blocked))),this.frame.onMessage=e=>{e.type===`ready`?n.started():e.type===`error`?n.error(L(e.error)):F(e,n)},this.frame.onLost=e=>this.finish(e),this.frame.send({type:`open`})}write(e){this.pending+=e,this.timer||=window.setTimeout(()=>this.flush(),100)}close(){this.flush();let e=this.feed.end();e&&this.frame.send({type:`write`,html:e}),this.frame.send({type:`close`})}stop(){this.frame.close(),this.finish(`stopped`)}flush(){clearTimeout(this.timer),this.timer=0;let e=this.feed.push(this.pending);this.pending=``,e&&!this.ended&&this.frame.send({type:`write`,html:e})}finish(e){this.ended||(this.ended=!0,clearTimeout(this.timer),this.listener.end(e))}};function L(e){let t=N(e),n=/^line:(\d+)$/.exec(String(e?.place??``));return n&&t.line?t.line+=Number(n[1])-1:t.line=null,t.line&&(t.details=`${t.message}\n    at line ${t.line}`),t}export{I as Preview,j as WorkerHost};